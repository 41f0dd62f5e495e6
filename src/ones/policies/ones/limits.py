"""R_j: how large a job's batch may be, from its start to its end (§3.3.2).

Four rules, each a function of numbers; `BatchLimits` remembers R for every job. The
printed scale-down formula never lets R grow once a job has run for any time at all,
because its inner ceiling is at least 2; `repaired` doubles while σT <= 1 and takes the
formula after that. docs/paper.md, items 30 to 36.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import Any

from ones.core.job import JobId
from ones.core.view import JobView
from ones.policies.ones.settings import OnesSettings

#: micro-steps of a step at most
MAX_PARTS = 32


def start_limit(base_batch: int, max_local_batch: int) -> int:
    """Start: what one GPU can hold, until the warm-up steps are done."""
    return min(base_batch, max_local_batch)


def after_rejection(limit: int, floor: int) -> int:
    """Resume: a job that an update left waiting asks for half, so that it fits sooner."""
    return max(limit // 2, floor)


def after_epoch(limit: int, *, growth: float, pressure: float, rule: str, floor: int) -> int:
    """Scale-up and scale-down. `pressure` is σ T_processed: how long it has run, in arrivals.

    >>> after_epoch(64, growth=2.0, pressure=0.5, rule="repaired", floor=16)
    128
    >>> after_epoch(64, growth=2.0, pressure=2.5, rule="repaired", floor=16)
    32
    """
    if rule == "never" or (rule == "repaired" and pressure <= 1):
        return int(limit * growth)
    return max(floor, ceil(growth * limit / ceil(pressure + 1)))


def cap(view: JobView, gpus: int, settings: OnesSettings) -> int:
    """The largest batch that any rule may give, by the user, the data and the base batch.

    Memory is no limit: what does not fit is accumulated in parts, if that is faster.
    """
    assert view.description is not None
    local = view.local_limit or view.description.base_batch
    base, size = view.description.base_batch, view.description.dataset_size
    most = max(
        min(base, local),
        min(
            MAX_PARTS * gpus * local,
            size // settings.least_steps,
            settings.most_base_batches * base,
        ),
    )
    return min(most, view.job.max_batch or most)


class ArrivalRate:
    """λ over the last ten minutes, or the last twenty arrivals if that is longer."""

    WINDOW, FEWEST, LEAST = 600.0, 20, 5

    def __init__(self) -> None:
        self._times: list[float] = []

    def saw(self, at: float) -> None:
        self._times.append(at)
        while len(self._times) > self.FEWEST and self._times[-1] - self._times[0] > self.WINDOW:
            self._times.pop(0)

    def at(self, now: float) -> float:
        """Jobs per second; 0 while too few have come to tell."""
        if len(self._times) < self.LEAST:
            return 0.0
        recent = [t for t in self._times if now - t <= self.WINDOW] or self._times
        span = max(now - recent[0], self.WINDOW if len(recent) < self.FEWEST else 1e-9)
        return len(recent) / span

    def save(self) -> list[float]:
        return list(self._times)

    def load(self, saved: list[float]) -> None:
        self._times = [float(t) for t in saved]


class BatchLimits:
    """R_j of every unfinished job that has joined."""

    def __init__(self, settings: OnesSettings) -> None:
        self._settings = settings
        self._limits: dict[JobId, int] = {}
        self._warm: set[JobId] = set()  # has done its warm-up steps
        self._grown_at: dict[JobId, float] = {}  # when the clock was looked at last

    def of(self, view: JobView) -> int:
        """Now; what a job may ask for when nothing else is known is its own batch."""
        if view.description is None:
            return view.job.requested_batch or 1
        return self._limits.get(view.id, self._floor(view))

    def is_warm(self, view: JobView) -> bool:
        return view.id in self._warm

    def joined(self, view: JobView) -> None:
        self._limits.setdefault(view.id, self._first(view))

    def stepped(self, view: JobView, steps: int) -> None:
        """It has measured itself over so many steps: warm-up is over (Start)."""
        if steps >= self._settings.warmup_steps and view.id not in self._warm:
            self._warm.add(view.id)
            self._set(view, int(self.of(view) * self._settings.growth), gpus=None)

    def is_ripe(self, job: JobId, now: float) -> bool:
        """Worth looking at: nothing is known of its steps here."""
        return now - self._grown_at.get(job, -inf) >= self._settings.ripening

    def ripen(self, view: JobView, now: float, *, gpus: int) -> None:
        """Growth by the clock: after so many seconds and twenty steps, as far as can be told."""
        if view.description is None or view.held is None or view.id not in self._warm:
            return
        since = self._grown_at.setdefault(view.id, now)
        steps = self._settings.warmup_steps * (view.progress.step_seconds or 0.0)
        if now - since >= max(self._settings.ripening, steps):
            self._grown_at[view.id] = now
            self._set(view, int(self.of(view) * self._settings.growth), gpus)

    def finished_epoch(self, view: JobView, *, pressure: float, gpus: int, crowded: bool) -> None:
        self._warm.add(view.id)
        rule = self._settings.scale_down
        if self._settings.shrink_only_when_waiting and not crowded:
            rule = "never"
        if self._settings.ripening and rule == "never":
            return  # the clock sees to it
        grown = after_epoch(
            self.of(view),
            growth=self._settings.growth,
            pressure=pressure,
            rule=rule,
            floor=self._floor(view),
        )
        self._set(view, grown, gpus)

    def rejected(self, view: JobView) -> None:
        if view.description is not None:
            self._limits[view.id] = after_rejection(self.of(view), self._floor(view))

    def forget(self, job: JobId) -> None:
        self._limits.pop(job, None)
        self._warm.discard(job)
        self._grown_at.pop(job, None)

    def _first(self, view: JobView) -> int:
        """What its user asked for has been tried before, as a rule."""
        asked = view.job.requested_batch or 1
        if not self._settings.trust_requested:
            asked = 1
        return max(
            self._floor(view), min(asked, cap(view, self._settings.most_gpus, self._settings))
        )

    def _floor(self, view: JobView) -> int:
        assert view.description is not None
        base = view.description.base_batch
        return start_limit(base, view.local_limit or base)

    def _set(self, view: JobView, limit: int, gpus: int | None) -> None:
        most = cap(view, gpus or self._settings.most_gpus, self._settings)
        self._limits[view.id] = max(1, min(limit, most))

    def save(self) -> dict[str, Any]:
        return {
            "limits": dict(self._limits),
            "warm": sorted(self._warm),
            "grown_at": dict(self._grown_at),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._limits = {JobId(job): int(limit) for job, limit in saved["limits"].items()}
        self._warm = {JobId(job) for job in saved["warm"]}
        self._grown_at = {JobId(job): float(at) for job, at in saved["grown_at"].items()}
