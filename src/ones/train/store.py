"""The job's store, a process of its own: `python -m ones.train.store JOB_DIR HOST`.

It offers two services: a TCPStore, where the workers of a process group connect, and the membership
server. Every worker keeps a connection to the membership server, so that a death is known at once;
after a loss the server names the members that continue. The store holds no state that is needed
later: when it dies a worker starts the next one, and all workers connect again.

Messages are lines of JSON. A worker sends

    {"hello": "n0/1", "token": "...", "pid": 12, "born": 345, "machine": "...", "groups": []}
    {"joins": [plan, incarnation]}      its group from here on
    {"pong": 7}
    {"failed": [plan, incarnation], "members": ["n0/0", "n0/1"], "step": 40}
    {"failed": null}                    withdraws the failure
    {"limit": 16}                       out of memory: number of samples that fit
    {"leaving": true}
    {"lives": "TOKEN"}                  before, or instead of, hello: is this the job's store?

and receives

    {"ping": 7}
    {"gone": "n0/1", "hangs": false}    the worker died, left, or hangs and is to be killed
    {"broken": [plan, incarnation]}     another member reported that this group has failed
    {"came": "n0/1"}                    also to itself: from here on the store waits for it
    {"reform": [plan, incarnation], "members": [...], "limit": null}
    {"expelled": true}                  the others continued without this worker
    {"lives": true}                     yes; the store of another job does not answer

The store ends when no worker has been connected for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ones.exec.files import try_lock
from ones.train import logs
from ones.train.membership import hang_seconds, machine_id, start_time
from ones.train.store_process import ADDRESS_FILE, ALIVE, STORE_LOCK, StoreAddress

PING_SECONDS = 1.0
IDLE_SECONDS = 5.0
IDLE_AFTER_LEAVE_SECONDS = 0.2  # after all workers have left in good order
GRACE_SECONDS = 15.0  # after a start: workers of an older store may still connect

_log = logs.logger("ones.train.store")


@dataclass(slots=True)
class _Member:
    name: str
    pid: int
    start_time: int | None
    machine: str
    writer: asyncio.StreamWriter
    generations: list[tuple[int, int]]  # the latest few that it was part of
    last_message_at: float = field(default_factory=time.monotonic)

    def send(self, **message: Any) -> None:
        if not self.writer.is_closing():
            self.writer.write(json.dumps(message).encode() + b"\n")


@dataclass(slots=True)
class _Failure:
    """A failed group, as one member reported it."""

    plan: int
    incarnation: int
    members: tuple[str, ...]
    position: int  # how far the member has trained; -1: it has no state

    @property
    def generation(self) -> tuple[int, int]:
        return self.plan, self.incarnation


class MembershipServer:
    """Knows the living workers of the job, and names the survivors after a loss."""

    def __init__(self, *, token: str, hang_seconds: float, started: float) -> None:
        self._token = token
        self._hang_seconds = hang_seconds
        self._started = started
        self.workers: dict[str, _Member] = {}
        self._known: set[str] = set()
        self._failures: dict[str, _Failure] = {}
        self._generation: tuple[int, int] = (-1, -1)  # of the last group that was re-formed
        self._answer: dict[str, Any] = {}  # that names its members
        self._answered: dict[str, int] = {}  # worker -> its pid
        self._limit: int | None = None
        self.idle_since = started
        self.idle_seconds = IDLE_SECONDS

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker: _Member | None = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if worker is not None:
                    self._handle(worker, message)
                elif "lives" in message:
                    if not self._is_token(message["lives"]):
                        break
                    writer.write(ALIVE)
                else:
                    worker = self._welcome(message, writer)
                    if worker is None:
                        break
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if worker is not None:
            self._remove(worker, hangs=False)
        writer.close()

    def _is_token(self, token: object) -> bool:
        return hmac.compare_digest(str(token).encode(), self._token.encode())

    def _welcome(self, hello: dict[str, Any], writer: asyncio.StreamWriter) -> _Member | None:
        if not self._is_token(hello["token"]):
            return None
        generations = [(plan, incarnation) for plan, incarnation in hello["groups"]]
        worker = _Member(
            hello["hello"], hello["pid"], hello["born"], hello["machine"], writer, generations
        )
        previous = self.workers.pop(worker.name, None)
        if previous is not None:
            previous.writer.close()
        self.workers[worker.name] = worker
        self._known.add(worker.name)
        self.idle_seconds = IDLE_SECONDS
        self._broadcast(came=worker.name)
        return worker

    def _broadcast(self, **message: Any) -> None:
        for worker in self.workers.values():
            worker.send(**message)

    def _handle(self, worker: _Member, message: dict[str, Any]) -> None:
        worker.last_message_at = time.monotonic()
        if "limit" in message:
            limit = int(message["limit"])
            self._limit = limit if self._limit is None else min(self._limit, limit)
        elif "failed" in message:
            if message["failed"] is None:
                self._withdraw_failure(worker)
                return
            plan, incarnation = message["failed"]
            if (plan, incarnation) < self._generation:
                if self._answered.get(worker.name) == worker.pid:
                    worker.send(**self._answer)  # it reported again before the answer arrived
                else:
                    worker.send(expelled=True)
                return
            self._failures[worker.name] = _Failure(
                plan, incarnation, tuple(message["members"]), message["step"]
            )
            for name in message["members"]:  # a device does not tell them
                if name in self.workers and name not in self._failures:
                    self.workers[name].send(broken=[plan, incarnation])
            self.resolve()
        elif "joins" in message:
            plan, incarnation = message["joins"]
            worker.generations = [*worker.generations[-3:], (plan, incarnation)]
        elif "leaving" in message:
            self.idle_seconds = IDLE_AFTER_LEAVE_SECONDS
            self._remove(worker, hangs=False)

    def _withdraw_failure(self, worker: _Member) -> None:
        """Withdraws a failure; members that were to continue with this worker see it as gone."""
        was_waiting = self._failures.pop(worker.name, None) is not None
        if not was_waiting and self._answered.pop(worker.name, None) is not None:
            for other in self.workers.values():
                if other is not worker:
                    other.send(gone=worker.name, hangs=False)

    def _remove(self, worker: _Member, *, hangs: bool) -> None:
        if self.workers.get(worker.name) is not worker:
            return
        del self.workers[worker.name]
        self._failures.pop(worker.name, None)
        self._broadcast(gone=worker.name, hangs=hangs)
        if not self.workers:
            self.idle_since = time.monotonic()
        self.resolve()

    def resolve(self) -> None:
        """Names the members that continue, once all living members have reported the failure.

        They continue with the newest plan among them: all its members had connected. Members of
        older plans only were leaving: they are not in the answer.
        """
        if not self._failures:
            return
        failures = self._failures.values()
        failed = {failure.generation for failure in failures}
        members = {name for failure in failures for name in failure.members}
        if any(self._is_awaited(name, failed) for name in members - self._failures.keys()):
            return
        others = [w for name, w in self.workers.items() if name not in self._failures]
        if all(f.position < 0 for f in failures) and any(w.generations for w in others):
            return  # joining workers without state: the controller will order them again
        newest = max(failures, key=lambda failure: failure.generation)
        survivors = [name for name in newest.members if name in self._failures]
        self._generation = (newest.plan, newest.incarnation + 1)
        self._answer = dict(reform=list(self._generation), members=survivors, limit=self._limit)
        waiting = [self.workers[name] for name in self._failures if name in self.workers]
        self._answered = {worker.name: worker.pid for worker in waiting}
        for worker in waiting:
            worker.send(**self._answer)
        self._failures.clear()

    def _is_awaited(self, name: str, failed: set[tuple[int, int]]) -> bool:
        """Whether a member will report the failure. A new process of the same name will not."""
        worker = self.workers.get(name)
        if worker is not None:
            return not failed.isdisjoint(worker.generations)
        return name not in self._known and time.monotonic() < self._started + GRACE_SECONDS

    def ping(self, number: int) -> None:
        """Pings all workers. Kills those silent for too long, if at least one worker answers."""
        now = time.monotonic()
        self._broadcast(ping=number)
        if any(now - w.last_message_at < 3 * PING_SECONDS for w in self.workers.values()):
            for worker in list(self.workers.values()):
                if now - worker.last_message_at > self._hang_seconds:
                    self._kill(worker)
        self.resolve()

    def _kill(self, worker: _Member) -> None:
        _log.warning("worker %s did not answer for %g s: killed", worker.name, self._hang_seconds)
        is_here = worker.machine == machine_id() and worker.start_time is not None
        if is_here and start_time(worker.pid) == worker.start_time:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(worker.pid, signal.SIGKILL)
        worker.send(expelled=True)
        self._remove(worker, hangs=True)


async def run(job_dir: str, host: str, port: int) -> None:
    token = os.environ.get("ONES_TOKEN", "")
    members = MembershipServer(token=token, hang_seconds=hang_seconds(), started=time.monotonic())
    server = await asyncio.start_server(members.serve, host, 0)
    StoreAddress(host, port, server.sockets[0].getsockname()[1]).write(job_dir)
    number = 0
    while members.workers or time.monotonic() < members.idle_since + members.idle_seconds:
        number += 1
        if number % 10 == 0:
            members.ping(number)
        await asyncio.sleep(PING_SECONDS / 10)
    server.close()


def main() -> None:
    import torch.distributed

    job_dir, host = sys.argv[1:3]
    with open(Path(job_dir, STORE_LOCK), "w") as lock:
        if not try_lock(lock.fileno()):
            sys.exit(f"{job_dir} has a store already")
        # bound here, because TCPStore itself would listen on every interface
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((host, 0))
        listener.listen(256)
        port = listener.getsockname()[1]
        c10d: Any = torch.distributed
        store = c10d.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        asyncio.run(run(job_dir, host, port))
        del store
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(job_dir, ADDRESS_FILE))


if __name__ == "__main__":
    main()
