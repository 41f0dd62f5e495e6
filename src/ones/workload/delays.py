"""How long orders took to be carried out in a recorded run: starts, restarts, newcomers."""

from __future__ import annotations

from dataclasses import dataclass, field

from ones.core.events import Event, Rescaled, RescaleFailed, WorkerReady
from ones.core.plan import Action, Prepare, Rescale, Start
from ones.core.record import JobRecord


@dataclass(slots=True)
class Delays:
    """Of one job."""

    starts: list[float] = field(default_factory=list)  # from order to training
    joins: list[float] = field(default_factory=list)  # from order to pause, if somebody joined
    pauses: list[float] = field(default_factory=list)  # of changes that took any time
    _order: Start | Rescale | None = None  # that is being timed
    _since: float = 0.0
    _prepared: bool = False  # newcomers had begun earlier: nobody knows when

    def ordered(self, action: Action, at: float, record: JobRecord) -> None:
        """Before the state takes the plan in."""
        if isinstance(action, Prepare):
            self._prepared = True
            return
        held = record.held.gpus if record.held is not None else ()
        joins = isinstance(action, Rescale) and not set(action.allocation.gpus) <= set(held)
        timed = isinstance(action, Start) or (joins and not self._prepared)
        self._order = action if timed and isinstance(action, Start | Rescale) else None
        self._since, self._prepared = at, False

    def heard(self, event: Event) -> None:
        """Of this job."""
        match event:
            case WorkerReady() if isinstance(self._order, Start):
                self.starts.append(event.at - self._since)
                self._order = None
            case Rescaled():
                if event.pause_seconds > 0:
                    self.pauses.append(event.pause_seconds)
                if isinstance(self._order, Rescale):
                    self.joins.append(max(0.0, event.at - self._since - event.pause_seconds))
                    self._order = None
            case RescaleFailed():
                self._order = None
            case _:
                pass
