"""The job's meeting point, a process of its own: `python -m ones.train.store JOB_DIR HOST`.

Two services. A TCPStore, where the workers of a group find one another. And the roll call:
every worker keeps a connection, so that a death is known at once, and after one the living
are told who goes on. Neither knows anything that could not be lost: when this process dies
the next one is started by a worker, and everybody says hello again.

Lines of JSON. A worker says

    {"hello": "n0/1", "token": "...", "pid": 12, "born": "345", "machine": "...", "groups": []}
    {"joins": [plan, incarnation]}      its group from here on
    {"pong": 7}
    {"failed": [plan, incarnation], "members": ["n0/0", "n0/1"], "step": 40}
    {"failed": null}                    it does not matter any more
    {"limit": 16}                       dying of memory: so many samples fit
    {"leaving": true}
    {"lives": "TOKEN"}                  before, or instead of, hello: is this the job's store?

and hears

    {"ping": 7}
    {"gone": "n0/1", "hangs": false}    it died, left, or is to be killed where it is
    {"came": "n0/1"}                    to itself, too: from here on the store stays for it
    {"reform": [plan, incarnation], "members": [...], "limit": null}
    {"expelled": true}                  the others went on without you
    {"lives": true}                     it is; a store of another job says nothing

It ends when no worker has been connected for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
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

from ones.train import logs
from ones.train.roll_call import (
    ADDRESS_FILE,
    LIVES,
    STORE_LOCK,
    StoreAddress,
    born,
    hang_seconds,
    machine,
)

PING_SECONDS = 1.0
IDLE_SECONDS = 5.0
GOODBYE_SECONDS = 0.2  # after all have left in good order
GRACE_SECONDS = 15.0  # after a start: so long workers of an older store may take to say hello

_log = logs.logger("ones.train.store")


@dataclass(slots=True)
class _Worker:
    name: str
    pid: int
    born: str
    machine: str
    writer: asyncio.StreamWriter
    groups: list[tuple[int, int]]  # generations that it was part of, the latest few
    heard: float = field(default_factory=time.monotonic)

    def say(self, **words: Any) -> None:
        if not self.writer.is_closing():
            self.writer.write(json.dumps(words).encode() + b"\n")


@dataclass(slots=True)
class _Failure:
    plan: int
    incarnation: int
    members: tuple[str, ...]
    step: int


class Calls:
    """The roll call's rules. Time is passed in where it matters."""

    def __init__(self, *, token: str, hang_seconds: float, started: float) -> None:
        self._token = token
        self._hang_seconds = hang_seconds
        self._started = started
        self.workers: dict[str, _Worker] = {}
        self._known: set[str] = set()
        self._failures: dict[str, _Failure] = {}
        self._formed: tuple[int, int] = (-1, -1)
        self._word: dict[str, Any] = {}  # the last one on who goes on
        self._word_for: dict[str, int] = {}  # worker -> its pid
        self._limit: int | None = None
        self.idle_since = started
        self.patience = IDLE_SECONDS

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker: _Worker | None = None
        try:
            while line := await reader.readline():
                words = json.loads(line)
                if worker is None and "lives" in words:
                    if not self._is_of_the_job(words["lives"]):
                        break
                    writer.write(LIVES)
                elif worker is None:
                    worker = self._hello(words, writer)
                    if worker is None:
                        break
                else:
                    self._hear(worker, words)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if worker is not None:
            self._gone(worker, hangs=False)
        writer.close()

    def _is_of_the_job(self, token: object) -> bool:
        return hmac.compare_digest(str(token).encode(), self._token.encode())

    def _hello(self, words: dict[str, Any], writer: asyncio.StreamWriter) -> _Worker | None:
        if not self._is_of_the_job(words["token"]):
            return None
        groups = [(plan, incarnation) for plan, incarnation in words["groups"]]
        worker = _Worker(
            words["hello"], words["pid"], words["born"], words["machine"], writer, groups
        )
        before = self.workers.pop(worker.name, None)
        if before is not None:
            before.writer.close()
        self.workers[worker.name] = worker
        self._known.add(worker.name)
        self.patience = IDLE_SECONDS
        for other in self.workers.values():
            other.say(came=worker.name)
        return worker

    def _hear(self, worker: _Worker, words: dict[str, Any]) -> None:
        worker.heard = time.monotonic()
        if "limit" in words:
            limit = int(words["limit"])
            self._limit = limit if self._limit is None else min(self._limit, limit)
        elif "failed" in words:
            if words["failed"] is None:
                self._takes_no_part(worker)
                return
            plan, incarnation = words["failed"]
            if (plan, incarnation) < self._formed:
                if self._word_for.get(worker.name) == worker.pid:
                    worker.say(**self._word)  # it asked again while the word was on its way
                else:
                    worker.say(expelled=True)
                return
            self._failures[worker.name] = _Failure(
                plan, incarnation, tuple(words["members"]), words["step"]
            )
            self.resolve()
        elif "joins" in words:
            plan, incarnation = words["joins"]
            worker.groups = [*worker.groups[-3:], (plan, incarnation)]
        elif "leaving" in words:
            self.patience = GOODBYE_SECONDS
            self._gone(worker, hangs=False)

    def _takes_no_part(self, worker: _Worker) -> None:
        """If the others were told otherwise meanwhile, they must not wait for it."""
        was_waiting = self._failures.pop(worker.name, None) is not None
        if not was_waiting and self._word_for.pop(worker.name, None) is not None:
            for other in self.workers.values():
                if other is not worker:
                    other.say(gone=worker.name, hangs=False)

    def _gone(self, worker: _Worker, *, hangs: bool) -> None:
        if self.workers.get(worker.name) is not worker:
            return
        del self.workers[worker.name]
        self._failures.pop(worker.name, None)
        for other in self.workers.values():
            other.say(gone=worker.name, hangs=hangs)
        if not self.workers:
            self.idle_since = time.monotonic()
        self.resolve()

    def resolve(self) -> None:
        """Once all who live have said that their group failed, say who goes on.

        The newest plan among them holds: its members had all connected. Members of older
        plans only are leavers of it, and are told so by not being in it.
        """
        if not self._failures:
            return
        failed = {(f.plan, f.incarnation) for f in self._failures.values()}
        members = {name for failure in self._failures.values() for name in failure.members}
        if any(self._is_awaited(name, failed) for name in members - self._failures.keys()):
            return
        others = [w for name, w in self.workers.items() if name not in self._failures]
        if all(f.step < 0 for f in self._failures.values()) and any(w.groups for w in others):
            return  # newcomers whom nobody fed: the controller will call them again
        newest = max(self._failures.values(), key=lambda f: (f.plan, f.incarnation))
        going_on = tuple(name for name in newest.members if name in self._failures)
        self._formed = (newest.plan, newest.incarnation + 1)
        self._word = dict(reform=list(self._formed), members=list(going_on), limit=self._limit)
        told = [self.workers[name] for name in self._failures if name in self.workers]
        self._word_for = {worker.name: worker.pid for worker in told}
        for worker in told:
            worker.say(**self._word)
        self._failures.clear()

    def _is_awaited(self, name: str, failed: set[tuple[int, int]]) -> bool:
        """Will it find out, too? Not if this is a new process on the place of a dead one."""
        worker = self.workers.get(name)
        if worker is not None:
            return not failed.isdisjoint(worker.groups)
        return name not in self._known and time.monotonic() < self._started + GRACE_SECONDS

    def ping(self, number: int) -> None:
        """Those who were not heard of for too long hang, if somebody else does answer."""
        now = time.monotonic()
        for worker in self.workers.values():
            worker.say(ping=number)
        somebody = any(now - w.heard < 3 * PING_SECONDS for w in self.workers.values())
        if somebody:
            for worker in list(self.workers.values()):
                if now - worker.heard > self._hang_seconds:
                    self._kill(worker)
        self.resolve()

    def _kill(self, worker: _Worker) -> None:
        _log.warning("%s does not answer: killed", worker.name)
        if worker.machine == machine() and worker.born and born(worker.pid) == worker.born:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(worker.pid, signal.SIGKILL)
        worker.say(expelled=True)
        self._gone(worker, hangs=True)


async def run(job_dir: str, host: str, rendezvous: int) -> None:
    token = os.environ.get("ONES_TOKEN", "")
    calls = Calls(token=token, hang_seconds=hang_seconds(), started=time.monotonic())
    server = await asyncio.start_server(calls.serve, host, 0)
    StoreAddress(host, rendezvous, server.sockets[0].getsockname()[1]).write(job_dir)
    number = 0
    while calls.workers or time.monotonic() < calls.idle_since + calls.patience:
        number += 1
        if number % 10 == 0:
            calls.ping(number)
        await asyncio.sleep(PING_SECONDS / 10)
    server.close()


def main() -> None:
    from typing import cast

    import torch.distributed

    job_dir, host = sys.argv[1:3]
    with open(Path(job_dir, STORE_LOCK), "w") as alone:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{job_dir} has a store already")
        # bound by us, because TCPStore itself would listen on every interface
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((host, 0))
        listener.listen(256)
        port = listener.getsockname()[1]
        store = cast(Any, torch.distributed).TCPStore(
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
