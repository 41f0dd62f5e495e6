"""What is left of jobs that ended long ago: removed after as many days as the settings say.

Only what is known to belong to a job that has ended is touched. The run log stays: it is the
record, and small beside outputs and checkpoints.
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
from ones.exec import drop_oldest
from ones.launchers.run_dirs import launches_in

DAY = 86_400.0
MINUTE, HOUR = 60.0, 3600.0
MB = 1_000_000

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Days after a job's end (0: for ever), and output of each job."""

    output_days: float = 30.0
    checkpoint_days: float = 7.0
    event_days: float = 0.0  # of the run log, after the event itself; then it is archived
    output_mb: float = 1024.0  # of each job


def due(ended: Mapping[str, float], now: float, days: float) -> set[str]:
    """Jobs that ended longer ago than so many days.

    >>> due({"old": 0.0, "new": 86_400.0}, now=2.5 * 86_400.0, days=2.0)
    {'old'}
    """
    if days <= 0:
        return set()
    return {job for job, at in ended.items() if now - at > days * DAY}


class Pruning:
    """Looks once an hour, and at the output of jobs that run once a minute. `ended`: when each job
    that is over has ended. `checkpoints`: a path or a URL that fsspec understands. `forget`: is
    told which jobs' output is removed, and when they ended."""

    def __init__(
        self,
        keeping: Retention,
        runs: Path,
        checkpoints: str,
        ended: Callable[[], Mapping[str, float]],
        now: Callable[[], float],
        forget: Callable[[Mapping[str, float]], object] = lambda jobs: None,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        """`also`: something else to be done once an hour."""
        self._keeping, self._ended, self._now = keeping, ended, now
        self._runs, self._forget, self._also = runs, forget, also
        self._outputs, self._checkpoints = runs / "ended", checkpoints
        self._trimmed: set[str] = set()  # ended jobs whose output was looked at
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
                except Exception:  # what a job left there must not end this thread
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
        """Drop the oldest output of jobs that have too much; returns how many bytes. `place`:
        "live", or "ended", where nothing grows and each job is looked at once."""
        removed = 0
        for job in sorted((self._runs / place).glob("*")):
            if job.name in self._trimmed or self._over.is_set():
                continue
            # put away in this moment, or files that the job itself has changed
            with suppress(OSError, ValueError, TypeError):
                found = [kept for run_dir in sorted(job.iterdir()) for kept in launches_in(run_dir)]
                found.sort(key=lambda kept: kept.started_at)
                removed += drop_oldest(
                    [(job / kept.node / kept.process.id, kept.process.alive) for kept in found],
                    round(self._keeping.output_mb * MB),
                )
                if place == "ended":
                    self._trimmed.add(job.name)
        return removed

    def prune(self) -> list[str]:
        """What was removed. What cannot be removed stays, and is tried again."""
        ended, now = self._ended(), self._now()
        removed = []
        with suppress(OnesError):  # the database does not answer: tried again in an hour
            old = due(ended, now, self._keeping.output_days)
            self._forget({job: ended[job] for job in old})
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
                continue  # nothing was ever written there, or it is out of reach
            for path in paths:
                # run directories have quoted names, checkpoints plain ones; ids need no quotes
                name = unquote(path.rstrip("/").rpartition("/")[2])
                if name in old and not self._over.is_set():
                    with suppress(OSError):
                        files.rm(path, recursive=True)
                        removed.append(path)
        return removed
