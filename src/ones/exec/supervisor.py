"""The loop of ones-exec: one thread, one selector, and no clock but for deadlines."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from ones.exec import lease
from ones.exec.lines import Connection
from ones.exec.processes import OF_JOB, carries, descendants, look, send
from ones.exec.records import (
    Exit,
    Spec,
    Status,
    known_launches,
    read_exit,
    read_status,
    spec_of,
    write,
)
from ones.exec.worker import Worker
from ones.exec.zygote import Birth, Zygote, fits

IDLE_SECONDS = 60.0
TICK_SECONDS = 0.02  # while somebody is on the way out
RETRY_SECONDS = 1.0  # of what a full disk refused

log = logging.getLogger(__name__)


class FencedError(ValueError):
    """Nobody may run here, through no fault of the job."""


class Supervisor:
    """Owns the workers of one job on one node, from the first launch until nobody is left."""

    def __init__(
        self,
        run_dir: Path,
        listener: socket.socket,
        idle_seconds: float = IDLE_SECONDS,
        lease_file: Path | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._lease = lease_file
        self._listener = listener
        self._workers: dict[str, Worker] = {}  # those without a record, and unwritten ones
        self._over: dict[str, Exit] = {}
        self._idle_seconds = idle_seconds
        self._idle_since = time.monotonic()
        self._closing = False
        self._zygote: Zygote | None = None
        # nobody ever writes to it: that it is closed, by our death, is what counts
        self._lifeline, self._our_end = os.pipe2(os.O_CLOEXEC)
        self._births: list[Birth] = []
        self._connections: dict[Connection, bool] = {}  # does it watch?
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._wakeup, wakeup_end = socket.socketpair()
        for end in (self._wakeup, wakeup_end):
            end.setblocking(False)
        self._wakeup_end = wakeup_end
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._drain_wakeup)
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._close(None))

    def run(self) -> None:
        while not self._is_done():
            ready = self._selector.select(self._patience())
            self._heed_lease()
            for key, _ in ready:
                key.data()
            self._reap()
            self._attend_births()
            self._see_off()
            self._retry()
            self._flush()
        for connection in list(self._connections):
            connection.flush()
            connection.close()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote = None
        self._clear_leftovers()

    def _is_done(self) -> bool:
        if self._workers:
            return False
        idle = time.monotonic() - self._idle_since
        return self._closing or idle >= self._idle_seconds

    def _heed_lease(self) -> None:
        """Without one nobody may run here: the slots may be somebody else's by now."""
        if self._may_run:
            return
        for worker in [w for w in self._workers.values() if not w.fenced]:
            log.warning("lease ran out, worker killed", extra={"launch": worker.spec.id})
            worker.fenced = True
            self._closing = True  # and nothing that stays warm for others, either
            self._stop(worker, 0.0)

    @property
    def _may_run(self) -> bool:
        return self._lease is None or lease.left(self._lease) > 0

    def _patience(self) -> float:
        rest = self._rest()
        if self._lease is None or all(w.fenced for w in self._workers.values()):
            return rest
        return min(rest, max(0.0, lease.left(self._lease)) + TICK_SECONDS)

    def _rest(self) -> float:
        if any(w.is_ending for w in self._workers.values()) or (
            self._zygote is not None and self._zygote.waiting
        ):
            return TICK_SECONDS
        if any(w.unwritten for w in self._workers.values()):
            return RETRY_SECONDS
        if not self._workers:
            return max(0.0, self._idle_since + self._idle_seconds - time.monotonic())
        return 3600.0

    def _drain_wakeup(self) -> None:
        with suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass

    # requests

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                connection = Connection(self._listener.accept()[0], raw=True)
                self._connections[connection] = False
                self._selector.register(
                    connection, selectors.EVENT_READ, lambda c=connection: self._converse(c)
                )

    def _converse(self, connection: Connection) -> None:
        for request in connection.receive():
            answer: dict[str, Any] = {"n": request.get("n")}
            try:
                answer |= {"ok": True, **self._answer(connection, request)}
            except Exception as problem:  # one request must not end the workers
                if not isinstance(problem, OSError | ValueError):
                    log.exception("request failed", extra={"request": str(request.get("do"))[:40]})
                answer["error"] = str(problem) or type(problem).__name__
                answer["fenced"] = isinstance(problem, FencedError)
            connection.send(answer)

    def _answer(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        match request.get("do"):
            case "launch":
                return {"known": self._launch(spec_of(request["spec"]))}
            case "prepare":
                self._prepare(spec_of(request["spec"]))
            case "stop":
                worker = self._workers.get(request["id"])
                if worker is not None:
                    self._stop(worker, _seconds(request["grace"]))
            case "watch":
                self._connections[connection] = True
                return {"launches": self._all_launches()}
            case "close":
                self._close(_seconds(request["grace"]))
            case other:
                raise ValueError(f"{other!r} is not a request")
        return {}

    def _all_launches(self) -> list[dict[str, Any]]:
        launches = []
        for path in known_launches(self._run_dir):
            worker = self._workers.get(path.name)
            status = worker.status if worker else read_status(path)
            record = worker.record if worker else read_exit(path)
            launches.append(_told(path.name, status, record))
        return launches

    def _launch(self, spec: Spec) -> bool:
        """Start it, unless it is known already: then nothing happens, and True is answered."""
        directory = self._run_dir / spec.id
        if spec.id in self._workers or (directory / "spec.json").exists():
            return True
        if not self._may_run:
            self._closing = True
            raise FencedError(f"launch {spec.id}: its node is cut off from the cluster")
        if self._closing:
            raise ValueError(f"launch {spec.id}: this job is being closed")
        directory.mkdir(mode=0o700, exist_ok=True)
        worker = Worker(self._run_dir, spec)
        try:
            write(directory, spec)
        except OSError:
            worker.close_output_end()
            os.close(worker.output)
            raise
        self._workers[spec.id] = worker
        if spec.zygote and fits(spec):
            self._start_from_zygote(worker)
        else:
            self._start(worker)
        return False

    def _prepare(self, spec: Spec) -> None:
        """A launch like this one will follow: have a zygote ready for it."""
        if self._zygote is None and not self._closing and fits(spec):
            self._zygote = Zygote(self._run_dir, spec, self._lifeline)
            self._idle_since = time.monotonic()

    def _start(self, worker: Worker) -> None:
        try:
            worker.start()
        except (OSError, ValueError) as problem:
            worker.not_started(_why_not(worker.spec, problem))
            self._conclude(worker)
            return
        self._has_started(worker)

    def _start_from_zygote(self, worker: Worker) -> None:
        zygote = self._zygote
        if zygote is None or zygote.interpreter != worker.spec.argv[0]:
            if zygote is not None and any(b.pid for b in self._births):
                self._start(worker)  # the other one has children; its end would be theirs
                return
            try:
                zygote = Zygote(self._run_dir, worker.spec, self._lifeline)
            except OSError:
                self._start(worker)
                return
            if self._zygote is not None:
                self._zygote.kill()
            self._zygote = zygote
        zygote.waiting.append(worker)

    def _attend_births(self) -> None:
        if self._zygote is not None and self._zygote.waiting:
            for birth in self._zygote.births():
                self._births.append(birth)
                self._selector.register(
                    birth, selectors.EVENT_READ, lambda b=birth: self._hear_birth(b)
                )
                if birth.refused:
                    self._end_birth(birth)

    def _hear_birth(self, birth: Birth) -> None:
        worker = birth.worker
        for news in birth.hear():
            if "pid" in news:
                birth.pid = news["pid"]
                worker.started(news["pid"])
                self._has_started(worker)
            elif "error" in news:
                birth.refused = birth.over = True
            elif worker.ended is None:
                worker.reaped(news["exit"] << 8 if "exit" in news else news["signal"])
                birth.over = True
        if birth.over:
            self._end_birth(birth)

    def _end_birth(self, birth: Birth) -> None:
        self._selector.unregister(birth)
        birth.line.close()
        self._births.remove(birth)
        if birth.pid is None:  # refused, for whatever reason: a plain start may still go well
            self._start(birth.worker)

    def _zygote_died(self) -> None:
        """Its children are ours now, and reaped as such."""
        assert self._zygote is not None
        for birth in self._births:
            if birth.pid is not None and look(birth.pid) is None and birth.worker.ended is None:
                birth.worker.reaped(signal.SIGKILL)  # it took the true status to the grave
        self._zygote.alive = False
        waiting, self._zygote = self._zygote.waiting, None
        for worker in waiting:
            self._start(worker)

    def _has_started(self, worker: Worker) -> None:
        assert worker.status is not None
        worker.write_status()
        self._selector.register(
            worker.output, selectors.EVENT_READ, lambda: self._listen_to(worker)
        )
        self._tell("started", worker.spec.id, worker.status, None)
        if worker.kill_at is not None:  # told to stop before it was there
            worker.stop(worker.kill_at - time.monotonic())

    def _listen_to(self, worker: Worker) -> None:
        if not worker.listen():
            self._selector.unregister(worker.output)

    def _close(self, grace: float | None) -> None:
        self._closing = True
        for worker in list(self._workers.values()):
            self._stop(worker, worker.spec.grace_seconds if grace is None else grace)

    # ends

    def _stop(self, worker: Worker, grace: float) -> None:
        if self._zygote is not None and worker in self._zygote.waiting:
            self._zygote.waiting.remove(worker)
            cause = "fenced" if worker.fenced else "stopped"  # not the job's fault
            worker.not_started("stopped before it was started", cause)
            self._conclude(worker)
        else:
            worker.stop(grace)

    def _reap(self) -> None:
        by_pid = {w.pid: w for w in self._workers.values() if w.pid is not None}
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in by_pid:
                    by_pid[pid].reaped(status)
                elif self._zygote is not None and pid == self._zygote.pid:
                    self._zygote_died()

    def _see_off(self) -> None:
        ending = [w for w in self._workers.values() if w.is_ending and w.pid is not None]
        if not ending:
            return
        known = {w.pid for w in self._workers.values()}
        if self._zygote is not None:
            known.add(self._zygote.pid)
        me = os.getpid()
        everyone = descendants([me])
        orphans = [p for p in everyone if p.parent == me and p.pid not in known]
        now = time.monotonic()
        for worker in ending:
            assert worker.pid is not None
            its = [p for p in everyone if p.pid == worker.pid]
            its += descendants([worker.pid]) if its else []
            mine = [p for p in orphans if worker.belongs(p)]
            its += [*mine, *descendants([p.pid for p in mine])] if mine else []
            its = [p for p in its if p.pid == worker.pid or not carries(p.pid, (OF_JOB,))]
            if worker.see_off(its, now):
                self._conclude(worker)

    def _conclude(self, worker: Worker) -> None:
        with suppress(KeyError):
            self._selector.unregister(worker.output)
        worker.conclude()
        assert worker.record is not None
        self._tell("exited", worker.spec.id, worker.status, worker.record)
        if not worker.unwritten:
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.spec.id]
        if not self._workers:
            self._idle_since = time.monotonic()
            self._clear_leftovers()

    def _retry(self) -> None:
        for worker in [w for w in self._workers.values() if w.unwritten]:
            worker.write_record()
            if not worker.unwritten:
                self._forget(worker)

    def _clear_leftovers(self) -> None:
        """Nobody works here any more: what belongs to no worker goes, too."""
        keep = {self._zygote.pid} if self._zygote is not None else set()
        for process in descendants([os.getpid()]):
            if process.pid not in keep:
                send(process, signal.SIGKILL)

    # news

    def _tell(self, event: str, launch: str, status: Status | None, record: Exit | None) -> None:
        news = {"event": event, **_told(launch, status, record)}
        for connection, watches in list(self._connections.items()):
            if watches:
                connection.send(news)

    def _flush(self) -> None:
        for connection in list(self._connections):
            connection.flush()
            if connection.closed:
                del self._connections[connection]
                self._selector.unregister(connection)
                connection.close()
                continue
            events = selectors.EVENT_READ
            if connection.wants_to_write:
                events |= selectors.EVENT_WRITE
            key = self._selector.get_key(connection)
            if key.events != events:
                self._selector.modify(connection, events, key.data)


def _told(launch: str, status: Status | None, record: Exit | None) -> dict[str, Any]:
    return {
        "id": launch,
        "status": asdict(status) if status else None,
        "exit": asdict(record) if record else None,
    }


def _seconds(value: Any) -> float:  # noqa: ANN401
    seconds = float(value)
    if not isfinite(seconds):
        raise ValueError(f"{seconds} is not a time in seconds")
    return seconds


def _why_not(spec: Spec, problem: Exception) -> str:
    """One line that names what is missing."""
    if isinstance(problem, OSError):
        what = spec.cwd if problem.filename == spec.cwd else spec.argv[0]
        return f"{what}: {(problem.strerror or str(problem)).lower()}"
    return f"{spec.argv[0]}: {problem}"
