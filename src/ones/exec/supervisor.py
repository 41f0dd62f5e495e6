"""The main loop of ones-exec: one thread and one selector. The clock is read for deadlines only."""

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
from ones.exec.output import drop_oldest
from ones.exec.processes import OF_JOB, ProcessInfo, descendants, has_variable, send_signal
from ones.exec.records import Exit, Launch, Status, parse_record
from ones.exec.request_server import FencedError, RequestServer
from ones.exec.run_dir import by_start, is_known, known_launches, read_record, write_record
from ones.exec.waker import SelectorWaker
from ones.exec.worker_process import WorkerProcess
from ones.exec.zygote import ForkStarter, can_fork

IDLE_SECONDS = 60.0
TICK_SECONDS = 0.02  # while a worker is ending
RETRY_SECONDS = 1.0  # for exit records, when the disk is full
TRIM_SECONDS = 60.0  # between two looks at the size of all output
MB = 1_000_000

log = logging.getLogger(__name__)


class Supervisor:
    """Owns the workers of one job on one node, from the first launch until all have ended."""

    def __init__(
        self,
        run_dir: Path,
        listener: socket.socket,
        idle_seconds: float = IDLE_SECONDS,
        lease_file: Path | None = None,
        service: int | None = None,
        output_mb: int | None = None,
    ) -> None:
        """`service`: the service's user, if it is another one; it may send requests too.

        `output_mb`: maximum output of all launches together; None: the service sees to it.
        """
        self._max_output = None if output_mb is None else output_mb * MB
        self._trimmed_at = time.monotonic()
        self._run_dir = run_dir
        self._lease = lease_file
        self._workers: dict[str, WorkerProcess] = {}  # without a written exit record
        self._idle_seconds = idle_seconds
        self._idle_since = time.monotonic()
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._server = RequestServer(listener, self._selector, self._answer, service)
        self._forks = ForkStarter(
            run_dir, self._selector, on_started=self._on_started, start=self._start
        )
        self._waker = SelectorWaker()
        self._selector.register(self._waker, selectors.EVENT_READ, self._waker.clear)
        signal.set_wakeup_fd(self._waker.wakeup_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._close(None))

    def run(self) -> None:
        while not self._is_done():
            ready = self._selector.select(self._timeout())
            self._check_lease()
            for key, _ in ready:
                key.data()
            self._reap()
            self._forks.send_requests()
            self._end_workers()
            self._retry_records()
            self._server.flush()
        self._server.close()
        self._forks.kill()
        self._kill_leftovers()

    def _is_done(self) -> bool:
        if self._workers:
            return False
        idle = time.monotonic() - self._idle_since
        return self._closing or idle >= self._idle_seconds

    def _check_lease(self) -> None:
        """Kills the workers when the lease has expired: other jobs may be given the slots."""
        if self._may_run:
            return
        for worker in [w for w in self._workers.values() if not w.is_fenced]:
            log.warning("lease expired, worker killed", extra={"launch": worker.launch.id})
            worker.is_fenced = True
            self._closing = True  # the zygote must not stay, either
            self._stop(worker, 0.0)

    @property
    def _may_run(self) -> bool:
        return self._lease is None or lease.remaining(self._lease) > 0

    def _timeout(self) -> float:
        """Seconds until the loop must run again, if nothing happens."""
        workers = self._workers.values()
        timeout = 3600.0
        if self._forks.is_waiting or any(w.is_ending for w in workers):
            timeout = TICK_SECONDS
        elif any(w.is_unwritten for w in workers):
            timeout = RETRY_SECONDS
        elif not workers:
            timeout = max(0.0, self._idle_since + self._idle_seconds - time.monotonic())
        if self._lease is None or all(w.is_fenced for w in workers):
            return timeout
        return min(timeout, max(0.0, lease.remaining(self._lease)) + TICK_SECONDS)

    # requests

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request.get("do"):
            case "launch":
                return {"known": self._launch(parse_record(Launch, request["spec"]))}
            case "prepare":
                if not self._closing and self._forks.prepare(parse_record(Launch, request["spec"])):
                    self._idle_since = time.monotonic()
            case "stop":
                worker = self._workers.get(request["id"])
                if worker is not None:
                    self._stop(worker, _seconds(request["grace"]))
            case "watch":
                return {"launches": self._all_launches()}
            case "close":
                self._close(_seconds(request["grace"]))
            case other:
                raise ValueError(f"unknown request {other!r}")
        return {}

    def _all_launches(self) -> list[dict[str, Any]]:
        launches = []
        for path in known_launches(self._run_dir):
            worker = self._workers.get(path.name)
            status = worker.status if worker else read_record(path, Status)
            record = worker.record if worker else read_record(path, Exit)
            launches.append(_launch_fields(path.name, status, record))
        return launches

    def _launch(self, launch: Launch) -> bool:
        """Starts a worker; True if the launch was known before, and nothing happens."""
        directory = self._run_dir / launch.id
        if launch.id in self._workers or is_known(directory):
            return True
        if not self._may_run:
            self._closing = True
            raise FencedError(f"launch {launch.id}: the lease of this node has expired")
        if self._closing:
            raise ValueError(f"launch {launch.id}: all workers of this job are being ended")
        directory.mkdir(mode=0o750, exist_ok=True)
        worker = WorkerProcess(self._run_dir, launch)
        try:
            write_record(directory, launch)
        except OSError:
            worker.close_output_end()
            os.close(worker.output)
            raise
        self._workers[launch.id] = worker
        if launch.zygote and can_fork(launch):
            self._forks.start(worker)
        else:
            self._start(worker)
        return False

    def _start(self, worker: WorkerProcess) -> None:
        try:
            worker.start()
        except (OSError, ValueError) as error:
            worker.set_not_started(_start_error(worker.launch, error))
            self._finish(worker)
            return
        self._on_started(worker)

    def _on_started(self, worker: WorkerProcess) -> None:
        self._selector.register(
            worker.output, selectors.EVENT_READ, lambda: self._read_output(worker)
        )
        self._broadcast("started", worker)
        if worker.kill_at is not None:  # the stop request came before the start
            worker.stop(worker.kill_at - time.monotonic())

    def _read_output(self, worker: WorkerProcess) -> None:
        if not worker.read_output():
            self._selector.unregister(worker.output)
        if time.monotonic() - self._trimmed_at >= TRIM_SECONDS:
            self._trim_output()

    def _trim_output(self) -> None:
        """Drops the oldest output of the job above its maximum."""
        self._trimmed_at = time.monotonic()
        if self._max_output is not None:
            launches = [(path, path.name in self._workers) for path in by_start(self._run_dir)]
            drop_oldest(launches, self._max_output)

    def _close(self, grace: float | None) -> None:
        self._closing = True
        for worker in list(self._workers.values()):
            self._stop(worker, worker.launch.grace_seconds if grace is None else grace)

    # ends

    def _stop(self, worker: WorkerProcess, grace: float) -> None:
        if self._forks.cancel(worker):
            cause = "fenced" if worker.is_fenced else "stopped"  # not a failure of the job
            worker.set_not_started("stopped before it was started", cause)
            self._finish(worker)
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
                    by_pid[pid].wait_status = status
                elif pid == self._forks.pid:
                    self._forks.zygote_died()

    def _end_workers(self) -> None:
        ending = [w for w in self._workers.values() if w.is_ending and w.pid is not None]
        if not ending:
            return
        known = {self._forks.pid, *(w.pid for w in self._workers.values())}
        me = os.getpid()
        processes = descendants([me])
        orphans = [p for p in processes if p.parent == me and p.pid not in known]
        now = time.monotonic()
        for worker in ending:
            if worker.end(_processes_of(worker, processes, orphans), now):
                self._finish(worker)

    def _finish(self, worker: WorkerProcess) -> None:
        with suppress(KeyError):
            self._selector.unregister(worker.output)
        worker.finish()
        self._broadcast("exited", worker)
        if not worker.is_unwritten:
            self._forget(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        del self._workers[worker.launch.id]
        self._trim_output()
        if not self._workers:
            self._idle_since = time.monotonic()
            self._kill_leftovers()

    def _retry_records(self) -> None:
        for worker in [w for w in self._workers.values() if w.is_unwritten]:
            worker.write_exit()
            if not worker.is_unwritten:
                self._forget(worker)

    def _kill_leftovers(self) -> None:
        """Kills processes that belong to no worker, once no worker is left."""
        for process in descendants([os.getpid()]):
            if process.pid != self._forks.pid:
                send_signal(process, signal.SIGKILL)

    def _broadcast(self, event: str, worker: WorkerProcess) -> None:
        fields = _launch_fields(worker.launch.id, worker.status, worker.record)
        self._server.broadcast({"event": event, **fields})


def _processes_of(
    worker: WorkerProcess, processes: list[ProcessInfo], orphans: list[ProcessInfo]
) -> list[ProcessInfo]:
    """The worker's main process, its orphans and their descendants, without those of the job."""
    own = [p for p in processes if p.pid == worker.pid]
    own += [p for p in orphans if worker.owns(p)]
    own += descendants([p.pid for p in own]) if own else []
    return [p for p in own if p.pid == worker.pid or not has_variable(p.pid, OF_JOB)]


def _launch_fields(launch: str, status: Status | None, record: Exit | None) -> dict[str, Any]:
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


def _start_error(launch: Launch, error: Exception) -> str:
    """Why a process cannot be started: one line that names the directory or program."""
    if isinstance(error, OSError):
        what = launch.cwd if error.filename == launch.cwd else launch.argv[0]
        return f"{what}: {(error.strerror or str(error)).lower()}"
    return f"{launch.argv[0]}: {error}"
