"""One worker under ones-exec: its start, its output, and its end with all its processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ones.exec import snapshot
from ones.exec.last_error import last_error
from ones.exec.output import OutputWriter
from ones.exec.processes import (
    ProcessInfo,
    die_with_parent,
    find_process,
    has_variable,
    send_signal,
)
from ones.exec.records import Exit, Launch, Status, storable, without_process
from ones.exec.run_dir import boot_id, write_record

#: between SIGTERM and SIGKILL, for processes that a worker leaves behind
LEFTOVER_SECONDS = 1.0
PIPE_BYTES = 1 << 20


class WorkerProcess:
    """A worker is created, then running (`pid`), reaped (`wait_status`) and ended (`record`)."""

    def __init__(self, run_dir: Path, launch: Launch) -> None:
        self.launch = launch
        self.directory = run_dir / launch.id
        self.pid: int | None = None
        self.status: Status | None = None
        self.wait_status: int | None = None  # of its main process
        self.record: Exit | None = None
        self.is_unwritten = False  # the record could not be written: the disk is full
        self.kill_at: float | None = None
        self.is_fenced = False  # the lease of its node has expired
        self._is_stopped = False
        self._leftovers_terminated = False
        self._variable = f"ONES_RUN_DIR={self.directory}".encode()
        self._writer = OutputWriter(self.directory)
        self.output, self.output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.output_end, True)
        with suppress(OSError):  # the system may allow less
            fcntl.fcntl(self.output_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def start(self) -> None:
        """Starts the process by fork and exec. Raises OSError if program or cwd is missing."""
        me = os.getpid()
        argv, cwd = self.launch.argv, self.launch.cwd
        if snapshot.DIGEST in self.launch.env:
            argv, cwd = (sys.executable, "-I", snapshot.__file__, *argv), str(self.directory)
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(self.launch.env),
            stdin=subprocess.DEVNULL,
            stdout=self.output_end,
            stderr=self.output_end,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(me),  # noqa: PLW1509  # this process has one thread
        )
        process.returncode = 0  # reaped by the supervisor and not by this object
        self.set_started(process.pid)

    def set_started(self, pid: int) -> None:
        self.pid = pid
        self.close_output_end()
        process = find_process(pid)
        self.status = Status(
            pid=pid,
            born=process.born if process else 0,
            started_at=time.time(),
            boot_id=boot_id(),
        )
        with suppress(OSError):  # a full disk must not end the worker
            write_record(self.directory, self.status)

    def set_not_started(self, why: str, cause: str = "not-started") -> None:
        self.close_output_end()
        self.record = without_process(cause, why)

    def close_output_end(self) -> None:
        if self.output_end >= 0:
            os.close(self.output_end)
            self.output_end = -1

    def read_output(self, max_reads: int = 64) -> bool:
        """Stores new output; False once all processes have closed their end."""
        for _ in range(max_reads):
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._writer.write(data)
        return True

    # the end

    def stop(self, grace: float) -> None:
        """Sends SIGTERM to the main process, which may save its work; SIGKILL after `grace` s."""
        deadline = time.monotonic() + max(0.0, grace)
        self.kill_at = deadline if self.kill_at is None else min(self.kill_at, deadline)
        if self._is_stopped or self.pid is None or self.wait_status is not None:
            return
        self._is_stopped = True
        process = find_process(self.pid)
        if process is not None:
            send_signal(process, signal.SIGTERM)

    @property
    def is_ending(self) -> bool:
        return self.record is None and (self.wait_status is not None or self.kill_at is not None)

    def owns(self, orphan: ProcessInfo) -> bool:
        return orphan.session == self.pid or has_variable(orphan.pid, self._variable)

    def end(self, processes: Iterable[ProcessInfo], now: float) -> bool:
        """Sends the signals that are due to the worker's processes; True once all have ended."""
        processes = list(processes)
        if self.wait_status is not None:
            if not processes:
                return True
            if not self._leftovers_terminated:
                self._leftovers_terminated = True
                for process in processes:
                    send_signal(process, signal.SIGTERM)
                latest = now + LEFTOVER_SECONDS
                self.kill_at = latest if self.kill_at is None else min(self.kill_at, latest)
        if self.kill_at is not None and now >= self.kill_at:
            for process in processes:
                send_signal(process, signal.SIGKILL)
        return False

    def finish(self) -> None:
        """Stores the last output and the exit record, after all processes have ended."""
        with suppress(OSError):
            self.read_output(max_reads=1 << 20)
        os.close(self.output)
        self._writer.close()
        with suppress(OSError):  # the service's group reads what the worker left for it
            (self.directory / "reports.jsonl").chmod(0o640)
        if self.record is None:
            assert self.wait_status is not None
            killed = os.WIFSIGNALED(self.wait_status)
            code = None if killed else os.WEXITSTATUS(self.wait_status)
            cause = "fenced" if self.is_fenced else "stopped"
            self.record = Exit(
                code=code,
                signal=os.WTERMSIG(self.wait_status) if killed else None,
                at=time.time(),
                cause=cause if self._is_stopped else "exited",
                message=self._exit_message(code),
            )
        self.is_unwritten = True
        self.write_exit()

    def _exit_message(self, code: int | None) -> str:
        if self.is_fenced:
            return "the lease of its node has expired"
        if not code or self._is_stopped:
            return ""
        with suppress(OSError):
            if line := last_error(self.directory):
                return storable(f"exit code {code}: {line}")
        return ""

    def write_exit(self) -> None:
        """Writes the exit record; call it again while `is_unwritten`."""
        assert self.record is not None
        with suppress(OSError):
            write_record(self.directory, self.record)
            self.is_unwritten = False
