"""One worker under ones-exec: started, listened to, and seen off with all that it started."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ones.exec.output import OutputWriter
from ones.exec.processes import Process, carries, die_with, look, send
from ones.exec.records import Exit, Spec, Status, boot_id, shown, write

#: what a worker leaves behind when it goes gets so long to go by itself
LEFTOVER_SECONDS = 1.0
PIPE_BYTES = 1 << 20


class Worker:
    """Phases: made, running (`pid`), reaped (`ended`), gone (`record`)."""

    def __init__(self, run_dir: Path, spec: Spec) -> None:
        self.spec = spec
        self.directory = run_dir / spec.id
        self.pid: int | None = None
        self.status: Status | None = None
        self.ended: int | None = None  # wait status of its main process
        self.record: Exit | None = None
        self.unwritten = False  # the disk did not take the record yet
        self.kill_at: float | None = None
        self.fenced = False  # its node's lease has run out
        self._stop_asked = False
        self._leftovers_told = False
        self._mark = f"ONES_RUN_DIR={self.directory}".encode()
        self._writer = OutputWriter(self.directory, spec.segment_bytes, spec.segments)
        self.output, self._output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self._output_end, True)
        with suppress(OSError):  # the system may allow less
            fcntl.fcntl(self._output_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def output_end(self) -> int:
        """Where its output goes; for whoever starts it."""
        return self._output_end

    def start(self) -> None:
        """By fork and exec. Raises OSError if there is no such program or directory."""
        me = os.getpid()
        process = subprocess.Popen(
            self.spec.argv,
            cwd=self.spec.cwd,
            env=dict(self.spec.env),
            stdin=subprocess.DEVNULL,
            stdout=self._output_end,
            stderr=self._output_end,
            start_new_session=True,
            preexec_fn=lambda: die_with(me),  # noqa: PLW1509  # this process has one thread
        )
        process.returncode = 0  # reaped by the loop and not by this object
        self.started(process.pid)

    def started(self, pid: int) -> None:
        self.pid = pid
        self.close_output_end()
        process = look(pid)
        self.status = Status(
            pid=pid,
            born=process.born if process else 0,
            started_at=time.time(),
            boot_id=boot_id(),
        )

    def not_started(self, why: str, cause: str = "not-started") -> None:
        self.close_output_end()
        self.record = Exit(code=None, at=time.time(), cause=cause, message=shown(why))

    def close_output_end(self) -> None:
        if self._output_end >= 0:
            os.close(self._output_end)
            self._output_end = -1

    # output

    def listen(self, most: int = 64) -> bool:
        """Take what it has printed; False once nobody can print any more."""
        for _ in range(most):
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
        """SIGTERM to its main process, which may want to write a checkpoint; SIGKILL later."""
        deadline = time.monotonic() + max(0.0, grace)
        self.kill_at = deadline if self.kill_at is None else min(self.kill_at, deadline)
        if self._stop_asked or self.pid is None or self.ended is not None:
            return
        self._stop_asked = True
        process = look(self.pid)
        if process is not None:
            send(process, signal.SIGTERM)

    def reaped(self, wait_status: int) -> None:
        self.ended = wait_status

    @property
    def is_ending(self) -> bool:
        return self.record is None and (self.ended is not None or self.kill_at is not None)

    def belongs(self, process: Process) -> bool:
        return process.session == self.pid or carries(process.pid, (self._mark,))

    def see_off(self, its: Iterable[Process], now: float) -> bool:
        """`its`: processes that are its own, the main one included. True once all are gone."""
        its = list(its)
        if self.ended is not None:
            if not its:
                return True
            if not self._leftovers_told:
                self._leftovers_told = True
                for process in its:
                    send(process, signal.SIGTERM)
                latest = now + LEFTOVER_SECONDS
                self.kill_at = latest if self.kill_at is None else min(self.kill_at, latest)
        if self.kill_at is not None and now >= self.kill_at:
            for process in its:
                send(process, signal.SIGKILL)
        return False

    def conclude(self) -> None:
        """All of it is gone: the last words and the record."""
        with suppress(OSError):
            self.listen(most=1 << 20)
        os.close(self.output)
        self._writer.close()
        if self.record is None:
            assert self.ended is not None
            killed = os.WIFSIGNALED(self.ended)
            self.record = Exit(
                code=None if killed else os.WEXITSTATUS(self.ended),
                signal=os.WTERMSIG(self.ended) if killed else None,
                at=time.time(),
                cause=("fenced" if self.fenced else "stopped") if self._stop_asked else "exited",
                message="its node was cut off from the cluster" if self.fenced else "",
            )
        self.unwritten = True
        self.write_record()

    def write_record(self) -> None:
        """Again and again until the disk takes it."""
        assert self.record is not None
        with suppress(OSError):
            write(self.directory, self.record)
            self.unwritten = False

    def write_status(self) -> None:
        assert self.status is not None
        with suppress(OSError):  # a full disk must not cost the worker
            write(self.directory, self.status)
