"""The common part of Pollux and Sia: rounds, restarts, and batches between rounds.

The policies differ in the number of GPUs of each job: they ask whether a round is due, and deploy
the result here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ones.core import events as ev
from ones.core import reasons
from ones.core.cluster import NodeId
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import ScheduleEdit
from ones.core.view import JobView, View
from ones.models.adaptive_batch import BatchRules
from ones.models.batch_tuner import BatchTuner
from ones.models.node_counts import assign_gpus
from ones.models.packing import GpuPool
from ones.models.rounds import RestartCosts, RoundClock
from ones.models.settings import check_settings, setting
from ones.models.sharing import OwnerQuota

#: events after which these policies decide
DECIDES_ON: frozenset[type[Event]] = frozenset(
    {ev.JobSubmitted, ev.JobReleased, ev.EpochFinished, ev.GpuSetAside, ev.NodeDraining, ev.Woke}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """Settings of both policies."""

    interval: float = setting(60.0, "seconds between two rounds", least=1.0)
    start_at_once: bool = setting(
        True, "start a new job at once on its minimum of GPUs, if they are free"
    )
    restart_seconds: float = setting(
        0.0,
        "assumed seconds of a restart; 0: as measured so far (Pollux's simulator: 30)",
        least=0.0,
    )
    most_batch: float = setting(32.0, "maximum batch, as a multiple of the base batch", least=1.0)
    least_local_batch: int = setting(1, "minimum samples per GPU in one step", least=1)
    two_parts_alone: bool = setting(
        False,
        "accumulate batches above the base batch in two parts on one GPU, as the"
        " published trainer does to measure its noise",
    )
    batch_gain: float = setting(
        0.05, "minimum gain in goodput for a change of the batch alone", least=0.0
    )
    batch_growth: float = setting(
        4.0, "maximum growth of the batch per epoch, as a factor (published: no limit)", least=1.0
    )

    def __post_init__(self) -> None:
        check_settings(self)


class GoodputRounds:
    """The state of such a policy, except its own search."""

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._rounds = RoundClock(settings.interval)
        self._restarts = RestartCosts()
        self._batches = BatchTuner(
            BatchRules(settings.most_batch, settings.least_local_batch, settings.two_parts_alone),
            growth=settings.batch_growth,
            gain=settings.batch_gain,
        )
        self.models = self._batches.models
        self._event_job: JobId | None = (
            None  # job of the current event, if that is a submission or epoch
        )

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._rounds.observe(event, view)
        self._restarts.observe(event, view)
        self._batches.observe(event, view)
        self._event_job = None
        if isinstance(event, ev.JobSubmitted):
            self._event_job = event.job.id
        elif isinstance(event, ev.EpochFinished | ev.JobReleased):
            self._event_job = event.job

    @property
    def due(self) -> bool:
        """Whether the current event starts a round."""
        return self._rounds.due

    def restart_factor(self, job: JobView, now: float) -> float:
        """Factor on a job's speed if it is restarted once more: (T - R n) / (T + R)."""
        seconds = self.restart_seconds(job)
        return self._restarts.factor(job.id, now - job.job.submitted_at, seconds)

    def restart_seconds(self, job: JobView) -> float:
        return self._settings.restart_seconds or self._restarts.seconds(job.id)

    def decide_between_rounds(self, view: View) -> Decision:
        """Between two rounds: a better batch after an epoch, or first GPUs for a new job."""
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        if self._event_job is not None and self._event_job in view.jobs:
            job = view.job(self._event_job)
            better = self._batches.after_epoch(job)
            if better is not None:
                edit.put(job.id, better[0])
                notes[job.id] = better[1]
            elif job.wanted is None and job.started_at is None and not job.pinned:
                notes[job.id] = self._start_new(view, job, edit)
        return Decision(schedule=edit.done(), wake_at=self._rounds.wake_at(view), notes=notes)

    def _start_new(self, view: View, job: JobView, edit: ScheduleEdit) -> str:
        pool, least = GpuPool(view), job.job.min_gpus
        if self._settings.start_at_once and least <= len(pool):
            gpus = pool.place(least)
            if gpus is not None and OwnerQuota(view, []).take(job.job.owner, least):
                allocation = self._batches.allocate(job, gpus)
                edit.put(job.id, allocation)
                return reasons.started(
                    least, allocation.batch, "GPUs are free until the next round"
                )
        return reasons.waiting_for_round(self._rounds.wake_at(view), least)

    def deploy(
        self, view: View, counts: Mapping[JobId, Mapping[NodeId, int]], why: str
    ) -> Decision:
        """Assigns GPUs by node; jobs that change GPUs get their best batch, too."""
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        jobs = [view.job(job) for job in counts]
        places = assign_gpus(view, jobs, counts)
        for job in jobs:
            gpus = places.get(job.id, ())
            if not gpus:
                notes[job.id] = reasons.waiting_by_rule(reasons.OTHERS_GAIN_MORE, job.job.min_gpus)
                if job.wanted is not None:
                    edit.drop(job.id)
                    notes[job.id] = reasons.preempted(reasons.takers(job.wanted.gpus, places))
            elif job.wanted is None or gpus != job.wanted.gpus:
                allocation = self._batches.allocate(job, gpus)
                edit.put(job.id, allocation)
                notes[job.id] = reasons.changed(job.wanted, allocation, why)
        return Decision(schedule=edit.done(), wake_at=self._rounds.wake_at(view), notes=notes)

    def save(self) -> dict[str, Any]:
        return {
            "rounds": self._rounds.save(),
            "restarts": self._restarts.save(),
            "batches": self._batches.save(),
            "spoke": self._event_job,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rounds.load(saved["rounds"])
        self._restarts.load(saved["restarts"])
        self._batches.load(saved["batches"])
        self._event_job = None if saved["spoke"] is None else JobId(saved["spoke"])
