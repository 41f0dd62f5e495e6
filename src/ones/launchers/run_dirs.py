"""Run directories below a root: `live/JOB/NODE/LAUNCH`, and `ended/...` for jobs that are
forgotten, where their output stays."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from ones.exec import Chunk, known_launches, read_exit, read_output, read_spec, read_status
from ones.exec.files import read_regular
from ones.launchers.api import LaunchedProcess
from ones.wire.environment import KEPT_REPORTS, MOST_KEPT_BYTES

_SLOT = re.compile(r"[^/]+/[0-9]{1,6}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch as its files describe it."""

    node: str
    process: LaunchedProcess
    started_at: float


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

    def all(self) -> Iterator[LaunchRecord]:
        """Launches of jobs that are not forgotten."""
        for run_dir in self.live():
            yield from launches_in(run_dir)

    def history(self, job: str) -> list[LaunchedProcess]:
        """Launches of a job in the order of their start."""
        found = {
            record.process.id: record
            for run_dir in self._run_dirs(job)
            for record in launches_in(run_dir)
        }
        return [r.process for r in sorted(found.values(), key=lambda record: record.started_at)]

    def output(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        chunk = Chunk(b"", 0, 0)
        for run_dir in self._run_dirs(job):
            if (run_dir / id).is_dir():
                chunk = read_output(run_dir / id, offset, limit)
                if (run_dir / id).is_dir():  # else it was archived while it was read
                    return chunk
        return chunk

    def reports(self, job: str, id: str) -> bytes:
        """Reports that the worker stored because the controller was unreachable; empty if the file
        does not belong to the user of the run directory."""
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
        """Live ones first: one that is archived meanwhile is found twice, and the last counts."""
        for base in (self._live, self._ended):
            with suppress(OSError):
                yield from sorted((base / quote(job, safe="")).iterdir())

    def archive(self, job: str, *nodes: str) -> None:
        """Move what these nodes have of the job to `ended`."""
        source, target = self.of_job(job), self._ended / quote(job, safe="")
        with suppress(OSError):  # a full disk: it is tried again at the next start
            for node in nodes:
                if node and (source / node).is_dir():
                    target.mkdir(mode=0o700, exist_ok=True)
                    shutil.rmtree(target / node, ignore_errors=True)
                    (source / node).rename(target / node)
            source.rmdir()


def job_of(run_dir: Path) -> str:
    return unquote(run_dir.parent.name)


def launches_in(run_dir: Path) -> list[LaunchRecord]:
    """In the order of their start."""
    found = []
    for path in known_launches(run_dir):
        spec, status = read_spec(path), read_status(path)
        # a spec that is unreadable, or names another launch, leaves a launch without slots
        is_its_own = spec is not None and spec.id == path.name
        slots = spec.slots if spec is not None and is_its_own else ()
        process = LaunchedProcess(
            id=path.name,
            job=job_of(run_dir),
            slots=slots if all(map(_SLOT.fullmatch, slots)) else (),
            pid=status.pid if status else None,
            exit=read_exit(path),
        )
        started_at = status.started_at if status else _changed_at(path)
        found.append(LaunchRecord(run_dir.name, process, started_at))
    return sorted(found, key=lambda record: record.started_at)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # archived at this moment
        return 0.0
