"""What is kept of launches on other nodes, on the controller's disk: it stays when a node is gone.

The layout is that of a node's run directories (`ones.exec.records`), without locks and sockets:
`live/JOB/NODE/LAUNCH/`, and `ended/JOB/...` for jobs that are forgotten. Specs hold no environment.
The bridge writes output, status and exits; the launcher writes specs, moves, and reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from ones.exec import (
    Chunk,
    Exit,
    Spec,
    Status,
    known_launches,
    read_exit,
    read_output,
    read_spec,
    read_status,
)
from ones.exec.output import PREFIX
from ones.exec.records import write
from ones.launchers.api import Launch, Process
from ones.launchers.keeper import on_disk

SEGMENT_BYTES = 8 << 20
SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class Kept:
    node: str
    process: Process


class Mirror:
    def __init__(self, root: Path) -> None:
        self._live, self._ended = root / "live", root / "ended"

    def make(self) -> None:
        for directory in (self._live, self._ended):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def directory(self, job: str, node: str, id: str) -> Path:
        return self._live / quote(job, safe="") / node / id

    # the launcher's side

    def add(self, launch: Launch, node: str) -> None:
        directory = self.directory(launch.job, node, launch.id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(
            directory,
            Spec(id=launch.id, argv=launch.argv, cwd=launch.cwd, env={}, slots=launch.slots),
        )

    def all(self) -> Iterator[Kept]:
        for run_dir in sorted(self._live.glob("*/*")):
            for path in known_launches(run_dir):
                spec, status = read_spec(path), read_status(path)
                assert spec is not None
                yield Kept(
                    run_dir.name,
                    Process(
                        id=spec.id,
                        job=unquote(run_dir.parent.name),
                        slots=spec.slots,
                        pid=status.pid if status else None,
                        exit=read_exit(path),
                    ),
                )

    def history(self, job: str) -> list[Process]:
        found = []
        for base in (self._ended, self._live):
            for run_dir in sorted((base / quote(job, safe="")).glob("*")):
                for spec, pid, began, exit in on_disk(run_dir):
                    process = Process(id=spec.id, job=job, slots=spec.slots, pid=pid, exit=exit)
                    found.append((began, process))
        return [process for _, process in sorted(found, key=lambda entry: entry[0])]

    def read(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        for base in (self._live, self._ended):
            for run_dir in (base / quote(job, safe="")).glob("*"):
                if (run_dir / id).is_dir():
                    return read_output(run_dir / id, offset, limit)
        return Chunk(b"", 0, 0)

    def end_job(self, job: str) -> None:
        source, target = self._live / quote(job, safe=""), self._ended / quote(job, safe="")
        if not source.is_dir():
            return
        with suppress(OSError):  # a full disk: it is found again at the next start
            target.mkdir(mode=0o700, exist_ok=True)
            for run_dir in source.iterdir():
                shutil.rmtree(target / run_dir.name, ignore_errors=True)
                run_dir.rename(target / run_dir.name)
            source.rmdir()

    # the bridge's side

    def is_over(self, job: str, node: str, id: str) -> bool:
        return read_exit(self.directory(job, node, id)) is not None

    def started(self, job: str, node: str, id: str, status: Status) -> None:
        with suppress(OSError):
            write(self.directory(job, node, id), status)

    def exited(self, job: str, node: str, id: str, exit: Exit) -> None:
        with suppress(OSError):
            write(self.directory(job, node, id), exit)

    def end(self, job: str, node: str, id: str) -> int:
        """How much output is here: the offset to ask for next."""
        return read_output(self.directory(job, node, id), 0, 0).end

    def take(self, job: str, node: str, id: str, offset: int, data: bytes) -> None:
        """Output from this offset on; what a node dropped before it was read leaves a gap."""
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
            for old in (
                segments[: -SEGMENTS if path is segments[-1] else 1 - SEGMENTS] if segments else ()
            ):
                old.unlink(missing_ok=True)
