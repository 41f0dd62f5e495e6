"""How long orders took to be carried out in a recorded run: starts, changes, and ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ones.core.events import (
    EpochFinished,
    Event,
    JobEnded,
    Rescaled,
    RescaleFailed,
    WorkerLeft,
    WorkerReady,
)
from ones.core.plan import Action, Prepare, Rescale, Start, Stop
from ones.core.record import JobRecord
from ones.workload.trace import Habits


@dataclass(slots=True)
class Delays:
    """Of one job. An order to those who train waits for the end of a step, half of one in the
    mean: that is not counted."""

    starts: list[float] = field(default_factory=list)  # from order to training
    joins: list[float] = field(default_factory=list)  # from order to pause, if somebody joined
    prepared_joins: list[float] = field(default_factory=list)  # who had begun earlier
    notices: list[float] = field(default_factory=list)  # the same if nobody joined
    pauses: list[float] = field(default_factory=list)  # of changes that took any time
    leaves: list[float] = field(default_factory=list)  # from a switch until a leaver was gone
    stops: list[float] = field(default_factory=list)  # from order until all were gone
    finishes: list[float] = field(default_factory=list)  # from the last epoch to the end
    clears: list[float] = field(default_factory=list)  # and from there until a worker was gone
    _order: Start | Rescale | Stop | None = None  # that is being timed
    _since: float = 0.0
    _joins: bool = False
    _prepared: bool = False  # newcomers may have begun earlier
    _half_step: float = 0.0
    _changed_at: float | None = None
    _last_epoch: float | None = None

    def ordered(self, action: Action, at: float, record: JobRecord) -> None:
        """Before the state takes the plan in."""
        if isinstance(action, Prepare):
            self._prepared = True
            return
        if not isinstance(action, Start | Rescale | Stop):
            self._order, self._prepared = None, False
            return
        held = record.held.gpus if record.held is not None else ()
        timed = isinstance(action, Start) or bool(held)
        self._order = action if timed else None
        self._joins = isinstance(action, Rescale) and not set(action.allocation.gpus) <= set(held)
        self._half_step = (record.step_seconds or 0.0) / 2
        self._since = at
        if isinstance(action, Start):
            self._prepared = False

    def heard(self, event: Event, record: JobRecord | None) -> None:
        """Of this job; the record after it, or None: the job has ended."""
        match event:
            case WorkerReady() if isinstance(self._order, Start):
                self.starts.append(event.at - self._since)
                self._order = None
            case Rescaled():
                self._rescaled(event)
            case RescaleFailed():
                self._order = None
            case WorkerLeft():
                self._left(event.at, record)
            case EpochFinished():
                self._last_epoch = event.at
            case JobEnded():
                if self._last_epoch is not None:
                    self.finishes.append(event.at - self._last_epoch)
                self._changed_at, self._order = event.at, None
            case _:
                pass

    def _rescaled(self, event: Rescaled) -> None:
        pause = event.pause_seconds
        if pause > 0:
            self.pauses.append(pause)
        if isinstance(self._order, Rescale):
            waited = event.at - self._since - pause - self._half_step
            if not self._joins:
                self.notices.append(waited)
            else:
                (self.prepared_joins if self._prepared else self.joins).append(waited)
                self._prepared = False
            self._order, self._changed_at = None, event.at - pause

    def _left(self, at: float, record: JobRecord | None) -> None:
        if record is None:
            if self._changed_at is not None:
                self.clears.append(at - self._changed_at)
        elif isinstance(self._order, Stop):
            if not record.occupied:
                self.stops.append(at - self._since - self._half_step)
                self._order = None
        elif self._order is None and self._changed_at is not None:
            self.leaves.append(at - self._changed_at)


def mean(seconds: Iterable[float]) -> float | None:
    """None of nothing. Of times from which half a step was taken, some may be below 0."""
    known = list(seconds)
    return max(0.0, sum(known) / len(known)) if known else None


def habits_of(delays: Iterable[Delays]) -> Habits:
    """What all jobs of a log have in common: their processes and the service."""
    every = list(delays)

    def of(name: str) -> float:
        return mean(s for d in every for s in getattr(d, name)) or 0.0

    warm, cold = of("prepared_joins"), of("joins")
    return Habits(
        notice=of("notices"),
        leave=of("leaves"),
        stop=of("stops"),
        finish=of("finishes"),
        clear=of("clears"),
        warms_early=not (warm and cold) or warm < cold / 2,
    )
