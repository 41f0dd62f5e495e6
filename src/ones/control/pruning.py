"""Removes output and checkpoints of jobs that ended long ago, after the days of the settings.

Only files that are known to belong to an ended job are removed. The run log stays: it is the
record, and small compared with outputs and checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import fsspec

from ones.control import logs
from ones.errors import OnesError
from ones.exec.output import drop_oldest
from ones.launchers.api import SupportsUsers
from ones.launchers.run_dirs import launches_in

DAY = 86_400.0
MINUTE, HOUR = 60.0, 3600.0
MB = 1_000_000

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long files are kept: days after a job's end (0: for ever), and maximum output."""

    output_days: float = 30.0
    checkpoint_days: float = 7.0
    event_days: float = 0.0  # days after an event until it is archived
    output_mb: float = 1024.0  # of each job


def due(ended: Mapping[str, float], now: float, days: float) -> set[str]:
    """Jobs that ended more than `days` ago; none if `days` is 0.

    >>> due({"old": 0.0, "new": 86_400.0}, now=2.5 * 86_400.0, days=2.0)
    {'old'}
    """
    if days <= 0:
        return set()
    return {job for job, at in ended.items() if now - at > days * DAY}


class Pruning:
    """A thread that prunes once an hour, and trims the output of running jobs once a minute.

    `ended`: end times of ended jobs. `checkpoints`: a path or URL for fsspec. `forget`: called with
    the end times of jobs before their output is removed.
    """

    def __init__(
        self,
        keeping: Retention,
        runs: Path,
        checkpoints: str,
        ended: Callable[[], Mapping[str, float]],
        now: Callable[[], float],
        forget: Callable[[Mapping[str, float]], object] = lambda jobs: None,
        also: Callable[[], object] = lambda: None,
        users: SupportsUsers | None = None,
    ) -> None:
        """`also`: another task to run once an hour. `users`: removes what belongs to users."""
        self._users = users
        self._keeping, self._ended, self._now = keeping, ended, now
        self._runs, self._forget, self._also = runs, forget, also
        self._outputs, self._checkpoints = runs / "ended", checkpoints
        self._trimmed: set[str] = set()  # ended jobs with trimmed output
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ones-pruning", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        minutes = 0
        while True:
            hourly = (self._prune, self._trim_ended, self._also)
            for task in (*(hourly if minutes % round(HOUR / MINUTE) == 0 else ()), self._trim_live):
                try:
                    task()
                except Exception:  # files of a job must not end this thread
                    log.exception("pruning failed")
            minutes += 1
            if self._over.wait(MINUTE):
                return

    def _prune(self) -> None:
        removed = self.prune()
        if removed:
            log.info("output and checkpoints of old jobs removed", count=len(removed))

    def _trim_ended(self) -> None:
        self.trim("ended")

    def _trim_live(self) -> None:
        self.trim("live")

    def trim(self, place: str) -> int:
        """Drop the oldest output of jobs with too much of it, and return the number of bytes.

        `place`: "live", or "ended", where output no longer grows and each job is trimmed once.
        """
        removed = 0
        for job in sorted((self._runs / place).glob("*")):
            if job.name in self._trimmed or self._over.is_set():
                continue
            # the directory is being moved, or the job has changed its files
            with suppress(OSError, ValueError, TypeError):
                found = [kept for run_dir in sorted(job.iterdir()) for kept in launches_in(run_dir)]
                found.sort(key=lambda kept: kept.started_at)
                removed += drop_oldest(
                    [(job / kept.node / kept.id, kept.alive) for kept in found],
                    round(self._keeping.output_mb * MB),
                )
                if place == "ended":
                    self._trimmed.add(job.name)
        return removed

    def prune(self) -> list[str]:
        """Remove old output and checkpoints and return their paths. Failures are tried again."""
        ended, now = self._ended(), self._now()
        removed = []
        with suppress(OnesError):  # the database does not respond: tried again in an hour
            old = due(ended, now, self._keeping.output_days)
            self._forget({job: ended[job] for job in old})
        if self._users is not None:
            for job in due(ended, now, self._keeping.checkpoint_days):
                if self._over.is_set():
                    break
                with suppress(OSError):
                    self._users.remove(job, checkpoints=True)
        for place, days in (
            (str(self._outputs), self._keeping.output_days),
            (self._checkpoints, self._keeping.checkpoint_days),
        ):
            old = due(ended, now, days)
            if not old:
                continue
            files, root = fsspec.core.url_to_fs(place)
            try:
                paths = sorted(files.ls(root, detail=False))
            except OSError:
                continue  # nothing was written yet, or the storage is not reachable
            for path in paths:
                # run directories have quoted names, checkpoints plain ones; ids need no quotes
                name = unquote(path.rstrip("/").rpartition("/")[2])
                if name in old and not self._over.is_set():
                    with suppress(OSError):
                        of_user = self._users if place == str(self._outputs) else None
                        if of_user and not of_user.remove(name, checkpoints=False):
                            continue  # the file that names the job's user, until all is removed
                        files.rm(path, recursive=True)
                        removed.append(path)
        return removed
