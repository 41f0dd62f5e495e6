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

DAY = 86_400.0
HOUR = 3600.0

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Days after a job's end; 0: for ever."""

    output_days: float = 30.0
    checkpoint_days: float = 7.0
    event_days: float = 0.0  # of the run log, after the event itself; then it is archived


def due(ended: Mapping[str, float], now: float, days: float) -> set[str]:
    """Jobs that ended longer ago than so many days.

    >>> due({"old": 0.0, "new": 86_400.0}, now=2.5 * 86_400.0, days=2.0)
    {'old'}
    """
    if days <= 0:
        return set()
    return {job for job, at in ended.items() if now - at > days * DAY}


class Pruning:
    """Looks once an hour. `ended`: when each job that is over has ended. `checkpoints`: a path or
    a URL that fsspec understands."""

    def __init__(
        self,
        keeping: Keeping,
        runs: Path,
        checkpoints: str,
        ended: Callable[[], Mapping[str, float]],
        now: Callable[[], float],
        also: Callable[[], object] = lambda: None,
    ) -> None:
        """`also`: something else to be done once an hour."""
        self._keeping, self._ended, self._now, self._also = keeping, ended, now, also
        self._outputs, self._checkpoints = runs / "ended", checkpoints
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ones-pruning", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            for task in (self._prune, self._also):
                try:
                    task()
                except Exception:  # the thread must live: it is tried again in an hour
                    log.exception("pruning failed")
            if self._over.wait(HOUR):
                return

    def _prune(self) -> None:
        removed = self.prune()
        if removed:
            log.info("output and checkpoints of old jobs removed", count=len(removed))

    def prune(self) -> list[str]:
        """What was removed. What cannot be removed stays, and is tried again."""
        ended, now = self._ended(), self._now()
        removed = []
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
