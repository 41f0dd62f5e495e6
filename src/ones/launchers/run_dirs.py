"""Run directories below a root: `live/JOB/NODE/LAUNCH`.

Those of jobs that are forgotten move to `ended/...`, where their output stays.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from ones.exec.files import read_regular
from ones.exec.output import Chunk, read_output
from ones.exec.records import Exit, Launch, Status
from ones.exec.run_dir import known_launches, read_record
from ones.launchers.api import LaunchedProcess
from ones.wire.environment import KEPT_REPORTS, MOST_KEPT_BYTES

_SLOT = re.compile(r"[^/]+/[0-9]{1,6}")

log = logging.getLogger(__name__)


class RunDirs:
    def __init__(self, root: Path) -> None:
        self._live, self._ended = root / "live", root / "ended"

    def make(self) -> None:
        for directory in (self._live, self._ended):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of_job(self, job: str) -> Path:
        return self._live / quote(job, safe="")

    def of(self, job: str, node: str) -> Path:
        return self.of_job(job) / node

    def directory(self, job: str, node: str, id: str) -> Path:
        return self.of(job, node) / id

    def live(self, node: str = "*") -> list[Path]:
        """Run directories of jobs that are not forgotten, on one node or on all."""
        return sorted(self._live.glob(f"*/{node}"))

    def all(self) -> Iterator[LaunchedProcess]:
        """Launches of jobs that are not forgotten."""
        for run_dir in self.live():
            yield from launches_in(run_dir)

    def history(self, job: str) -> list[LaunchedProcess]:
        """Launches of a job in the order of their start."""
        found = {p.id: p for run_dir in self._run_dirs(job) for p in launches_in(run_dir)}
        return sorted(found.values(), key=lambda process: process.started_at)

    def output(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        chunk = Chunk(b"", 0, 0)
        for run_dir in self._run_dirs(job):
            if (run_dir / id).is_dir():
                chunk = read_output(run_dir / id, offset, limit)
                if (run_dir / id).is_dir():  # else it was archived while it was read
                    return chunk
        return chunk

    def reports(self, job: str, id: str) -> bytes:
        """The reports that a worker stored while the controller was unreachable.

        Empty if there are none, or if another user than that of the run directory owns the file.
        """
        for run_dir in self._run_dirs(job):
            try:
                owner = run_dir.stat().st_uid
                return read_regular(run_dir / id / KEPT_REPORTS, MOST_KEPT_BYTES, owner=owner)
            except FileNotFoundError:
                continue
            except OSError as problem:
                refused = {"job": job, "launch": id, "reason": str(problem)}
                log.warning("kept reports refused", extra=refused)
        return b""

    def _run_dirs(self, job: str) -> Iterator[Path]:
        """Live ones first: one that is archived meanwhile is found twice; the last one counts."""
        for base in (self._live, self._ended):
            with suppress(OSError):
                yield from sorted((base / quote(job, safe="")).iterdir())

    def archive(self, job: str, *nodes: str) -> None:
        """Moves the job's run directories of these nodes to `ended`."""
        source, target = self.of_job(job), self._ended / quote(job, safe="")
        with suppress(OSError):  # a full disk: tried again at the next start
            for node in nodes:
                if node and (source / node).is_dir():
                    target.mkdir(mode=0o700, exist_ok=True)
                    shutil.rmtree(target / node, ignore_errors=True)
                    (source / node).rename(target / node)
            source.rmdir()


def job_of(run_dir: Path) -> str:
    return unquote(run_dir.parent.name)


def launches_in(run_dir: Path) -> list[LaunchedProcess]:
    """The launches of a run directory, in the order of their start."""
    found = []
    for path in known_launches(run_dir):
        launch, status = read_record(path, Launch), read_record(path, Status)
        # a record that is unreadable, or names another launch, leaves a launch without slots
        slots = launch.slots if launch is not None and launch.id == path.name else ()
        process = LaunchedProcess(
            id=path.name,
            job=job_of(run_dir),
            slots=slots if all(map(_SLOT.fullmatch, slots)) else (),
            node=run_dir.name,
            pid=status.pid if status else None,
            started_at=status.started_at if status else _changed_at(path),
            exit=read_record(path, Exit),
        )
        found.append(process)
    return sorted(found, key=lambda process: process.started_at)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # archived at this moment
        return 0.0
