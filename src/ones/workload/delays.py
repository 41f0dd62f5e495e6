"""Durations of starts, rescales and ends in a recorded run."""

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
from ones.workload.trace import ServiceDelays


@dataclass(slots=True)
class Delays:
    """Durations of one job. The wait for the end of a step, half a step on average, is excluded."""

    starts: list[float] = field(default_factory=list)  # from order to training
    joins: list[float] = field(default_factory=list)  # from order to pause, with joining workers
    prepared_joins: list[float] = field(default_factory=list)  # the same, prepared earlier
    notices: list[float] = field(default_factory=list)  # the same, without joining workers
    pauses: list[float] = field(default_factory=list)  # of rescales with a pause
    leaves: list[float] = field(default_factory=list)  # from a switch until a worker had left
    stops: list[float] = field(default_factory=list)  # from order until all workers had left
    finishes: list[float] = field(default_factory=list)  # from the last epoch to the end
    clears: list[float] = field(default_factory=list)  # from the end until a worker had left
    _order: Start | Rescale | Stop | None = None  # being timed
    _since: float = 0.0
    _joins: bool = False
    _prepared: bool = False  # joining workers may have started earlier
    _half_step: float = 0.0
    _changed_at: float | None = None
    _last_epoch: float | None = None

    def record_action(self, action: Action, at: float, record: JobRecord) -> None:
        """Records an action, before its plan is applied to the state."""
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

    def record_event(self, event: Event, record: JobRecord | None) -> None:
        """Records an event of this job. `record`: after the event; None: the job has ended."""
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
    """The mean, at least 0 (half a step was subtracted); None without values."""
    known = list(seconds)
    return max(0.0, sum(known) / len(known)) if known else None


def service_delays(delays: Iterable[Delays]) -> ServiceDelays:
    """Mean durations over all jobs of a log."""
    all_delays = list(delays)

    def of(name: str) -> float:
        return mean(s for d in all_delays for s in getattr(d, name)) or 0.0

    warm, cold = of("prepared_joins"), of("joins")
    return ServiceDelays(
        notice=of("notices"),
        leave=of("leaves"),
        stop=of("stops"),
        finish=of("finishes"),
        clear=of("clears"),
        warms_early=not (warm and cold) or warm < cold / 2,
    )
