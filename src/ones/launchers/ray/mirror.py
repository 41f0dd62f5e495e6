"""Copies of run directories of other nodes on the controller's disk: they stay when a node is gone.

The layout is that of run directories (`ones.launchers.run_dirs`), without locks and sockets. The
launcher writes launches, without their environment, moves directories, and reads. The driver writes
output, status and exits.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from ones.exec.output import PREFIX, SEGMENT_BYTES, SEGMENTS, read_output
from ones.exec.records import Exit, Launch, Status
from ones.exec.run_dir import read_record, write_record
from ones.launchers.run_dirs import RunDirs
from ones.wire.environment import KEPT_REPORTS, MOST_KEPT_BYTES


class Mirror(RunDirs):
    # the launcher's side

    def add(self, launch: Launch, node: str) -> None:
        directory = self.directory(launch.job, node, launch.id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_record(directory, replace(launch, env={}))

    def end_job(self, job: str) -> None:
        self.archive(job, *(run_dir.name for run_dir in self.of_job(job).glob("*")))

    # the driver's side

    def is_over(self, job: str, node: str, id: str) -> bool:
        return read_record(self.directory(job, node, id), Exit) is not None

    def started(self, job: str, node: str, id: str, status: Status) -> None:
        with suppress(OSError):
            write_record(self.directory(job, node, id), status)

    def exited(self, job: str, node: str, id: str, exit: Exit) -> None:
        with suppress(OSError):
            write_record(self.directory(job, node, id), exit)

    def write_reports(self, job: str, node: str, id: str, data: bytes) -> None:
        """Writes the reports that a worker stored while the controller was unreachable."""
        path = self.directory(job, node, id) / KEPT_REPORTS
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(data[:MOST_KEPT_BYTES])

    def end(self, job: str, node: str, id: str) -> int:
        """The offset of the end of the copied output."""
        return read_output(self.directory(job, node, id), 0, 0).end

    def append(self, job: str, node: str, id: str, offset: int, data: bytes) -> None:
        """Appends output at this offset. Output that the node dropped before leaves a gap."""
        directory = self.directory(job, node, id)
        segments = sorted(p for p in directory.glob(f"{PREFIX}*") if p.name[4:].isdecimal())
        path = directory / f"{PREFIX}{offset:015d}"
        if segments:
            last = segments[-1]
            size = last.stat().st_size
            if int(last.name[4:]) + size == offset and size < SEGMENT_BYTES:
                path = last
        with suppress(OSError):  # a full disk costs output, not the worker
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            for old in sorted({*segments, path})[:-SEGMENTS]:
                old.unlink(missing_ok=True)
