"""State of policies that decide in rounds: when rounds are due, and what restarts cost."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, inf
from typing import Any

from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.view import View

#: seconds by which a round is deferred, so that it sees all events of its time
_SAME_TIME = 1e-3


class RoundClock:
    """Rounds are at multiples of the interval while there are jobs, and when GPUs are cordoned."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = inf
        self.due = False  # whether the current event starts a round

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self.due = False
        if not view.jobs:
            self._next = inf
        elif self._next == inf:
            self._next = self._interval * ceil(event.at / self._interval)
        elif isinstance(event, ev.GpuSetAside | ev.NodeDraining):
            self._next = min(self._next, event.at)  # jobs there may leave at once
        if isinstance(event, ev.Woke) and event.at >= self._next:
            self.due = True
            self._next = self._interval * (floor(event.at / self._interval) + 1)

    def wake_at(self, view: View) -> float:
        return max(self._next, view.now + _SAME_TIME) if view.jobs else inf

    def save(self) -> dict[str, Any]:
        return {"next": None if self._next == inf else self._next, "due": self.due}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._next = inf if saved["next"] is None else float(saved["next"])
        self.due = bool(saved["due"])


class RestartCosts:
    """Number of restarts of each job, and the mean pause of a restart."""

    def __init__(self) -> None:
        self._counts: dict[JobId, int] = {}
        self._places: dict[JobId, tuple[Gpu, ...]] = {}  # its last GPUs; (): none
        self._pauses: dict[JobId, list[float]] = {}  # sum and number, including the expected one

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        match event:
            case ev.JobSubmitted():
                expected = view.job(event.job.id).switch_cost.rescale_seconds
                self._pauses[event.job.id] = [expected, 1.0]
            case ev.Rescaled() if event.pause_seconds > 0:  # 0: only the batch changed
                sums = self._pauses.setdefault(event.job, [0.0, 0.0])
                sums[0] += event.pause_seconds
                sums[1] += 1.0
            case ev.JobEnded():
                for table in (self._counts, self._places, self._pauses):
                    table.pop(event.job, None)
            case PlanAdopted():
                for action in event.plan.actions:
                    if action.job in view.jobs:
                        self._count_move(action.job, view)
            case _:
                pass

    def _count_move(self, job: JobId, view: View) -> None:
        wanted = view.job(job).wanted
        gpus = wanted.gpus if wanted else ()
        before = self._places.get(job)
        if gpus and before is not None and gpus != before:
            self._counts[job] = self._counts.get(job, 0) + 1
        if gpus or before is not None:
            self._places[job] = gpus

    def count(self, job: JobId) -> int:
        return self._counts.get(job, 0)

    def seconds(self, job: JobId) -> float:
        """Expected seconds of another restart."""
        total, number = self._pauses.get(job, (0.0, 1.0))
        return total / number

    def factor(self, job: JobId, age: float, seconds: float) -> float:
        """Factor on a job's speed if it is restarted once more: (T - R n) / (T + R)."""
        if age + seconds <= 0:
            return 1.0
        return max(age - self.count(job) * seconds, 0.0) / (age + seconds)

    def save(self) -> dict[str, Any]:
        return {
            "counts": dict(self._counts),
            "places": {job: [list(gpu) for gpu in gpus] for job, gpus in self._places.items()},
            "pauses": {job: list(sums) for job, sums in self._pauses.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._counts = {JobId(job): int(n) for job, n in saved["counts"].items()}
        self._places = {
            JobId(job): tuple(Gpu(NodeId(node), int(index)) for node, index in gpus)
            for job, gpus in saved["places"].items()
        }
        self._pauses = {JobId(job): [float(x) for x in s] for job, s in saved["pauses"].items()}
