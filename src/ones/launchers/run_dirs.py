"""Run directories below a root: `live/JOB/NODE/LAUNCH`.

Those of jobs that are forgotten move to `ended/...`, where their output stays. If a job runs as
another user than the service, `live/JOB` (or `ended/JOB`) is a file that names this user; the
run directory is in the directory of that user. There, everything may be a link or not what it
seems: only files of that user are read.
"""

from __future__ import annotations

import json
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
from ones.launchers.job_user import JobUser
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
        user = self.user_of(job)
        return self._of_user(user, job) if user else self._live / quote(job, safe="")

    @staticmethod
    def _of_user(user: JobUser, job: str) -> Path:
        return Path(user.directory) / "live" / quote(job, safe="")

    def assign(self, job: str, user: JobUser, node: str) -> None:
        """Notes that a job runs as this user. Raises OSError if it began as another one."""
        known = self.user_of(job)
        if known is None:
            path = self._live / quote(job, safe="")
            if path.is_dir():
                raise OSError(f"job {job} has run as the user of the service before")
            beside = path.with_suffix(".new")
            beside.write_text(user.to_json(node))
            beside.replace(path)
        elif known.uid != user.uid:
            raise OSError(f"job {job} has run as user {known.name} before, not as {user.name}")

    def user_of(self, job: str) -> JobUser | None:
        """The Unix user of a job, live or ended; None: the user of the service."""
        name = quote(job, safe="")
        found = _assigned(self._live / name) or _assigned(self._ended / name)
        return found[0] if found else None

    def has_users(self) -> bool:
        """Whether there are live jobs that run as other users than the service's."""
        with suppress(FileNotFoundError):
            return any(_assigned(path) for path in self._live.iterdir())
        return False

    def owner_of(self, job: str) -> int | None:
        """The user that owns the files of a job; None: they are not checked."""
        user = self.user_of(job)
        return user.uid if user else None

    def of(self, job: str, node: str) -> Path:
        return self.of_job(job) / node

    def directory(self, job: str, node: str, id: str) -> Path:
        return self.of(job, node) / id

    def live(self, node: str = "*") -> list[Path]:
        """Run directories of jobs that are not forgotten, on one node or on all."""
        found = sorted(self._live.glob(f"*/{node}"))
        for path in sorted(self._live.glob("*")):
            if (assigned := _assigned(path)) and node in ("*", assigned[1]):
                user, there = assigned
                found.append(self._of_user(user, unquote(path.name)) / there)
        return found

    def all(self) -> Iterator[LaunchedProcess]:
        """Launches of jobs that are not forgotten."""
        for run_dir in self.live():
            yield from launches_in(run_dir, self.owner_of(job_of(run_dir)))

    def history(self, job: str) -> list[LaunchedProcess]:
        """Launches of a job in the order of their start."""
        owner = self.owner_of(job)
        found = {p.id: p for run_dir in self._run_dirs(job) for p in launches_in(run_dir, owner)}
        return sorted(found.values(), key=lambda process: process.started_at)

    def output(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        chunk, owner = Chunk(b"", 0, 0), self.owner_of(job)
        for run_dir in self._run_dirs(job):
            if (run_dir / id).is_dir():
                chunk = read_output(run_dir / id, offset, limit, owner)
                if (run_dir / id).is_dir():  # else it was archived while it was read
                    return chunk
        return chunk

    def reports(self, job: str, id: str) -> bytes:
        """The reports that a worker stored while the controller was unreachable.

        Empty if there are none, or if another user than that of the run directory owns the file.
        """
        for run_dir in self._run_dirs(job):
            try:
                owner = self.owner_of(job)
                owner = run_dir.stat().st_uid if owner is None else owner
                return read_regular(run_dir / id / KEPT_REPORTS, MOST_KEPT_BYTES, owner=owner)
            except FileNotFoundError:
                continue
            except OSError as problem:
                refused = {"job": job, "launch": id, "reason": str(problem)}
                log.warning("kept reports refused", extra=refused)
        return b""

    def _run_dirs(self, job: str) -> Iterator[Path]:
        """Live ones first: one that is archived meanwhile is found twice; the last one counts."""
        name = quote(job, safe="")
        for base in (self._live, self._ended):
            with suppress(OSError):
                if assigned := _assigned(base / name):
                    yield self._of_user(assigned[0], job) / assigned[1]
                else:
                    yield from sorted((base / name).iterdir())

    def archive(self, job: str, *nodes: str) -> None:
        """Moves the job's run directories of these nodes to `ended`."""
        source, target = self._live / quote(job, safe=""), self._ended / quote(job, safe="")
        with suppress(OSError):  # a full disk: tried again at the next start
            if source.is_file():
                source.rename(target)
                return
            for node in nodes:
                if node and (source / node).is_dir():
                    target.mkdir(mode=0o700, exist_ok=True)
                    shutil.rmtree(target / node, ignore_errors=True)
                    (source / node).rename(target / node)
            source.rmdir()


def job_of(run_dir: Path) -> str:
    return unquote(run_dir.parent.name)


def _assigned(path: Path) -> tuple[JobUser, str] | None:
    """The user and node that a file of this directory names. Only the service writes there."""
    try:
        plain = json.loads(read_regular(path, 1 << 16))
        return JobUser(plain["name"], plain["uid"], plain["directory"]), plain["node"]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def launches_in(run_dir: Path, owner: int | None = None) -> list[LaunchedProcess]:
    """The launches of a run directory, in the order of their start.

    `owner`: files of other users are not read. A directory that is named like a launch of another
    job is not one: the job's user made it.
    """
    found, job = [], job_of(run_dir)
    for path in known_launches(run_dir, owner):
        if "~" in path.name and path.name.partition("~")[0] != job:
            continue
        launch, status = read_record(path, Launch, owner), read_record(path, Status, owner)
        # a record that is unreadable, or names another launch, leaves a launch without slots
        slots = launch.slots if launch is not None and launch.id == path.name else ()
        process = LaunchedProcess(
            id=path.name,
            job=job,
            slots=slots if all(map(_SLOT.fullmatch, slots)) else (),
            node=run_dir.name,
            pid=status.pid if status else None,
            started_at=status.started_at if status else _changed_at(path),
            exit=read_record(path, Exit, owner),
        )
        found.append(process)
    return sorted(found, key=lambda process: process.started_at)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # archived at this moment
        return 0.0
