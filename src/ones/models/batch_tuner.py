"""Chooses the batch of each job: the best one for its GPUs, with limited growth per epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.core import events as ev
from ones.core import reasons
from ones.core.cluster import Gpu
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.schedule import Allocation
from ones.core.view import JobView, View
from ones.models.adaptive_batch import BatchRules, GoodputModels, allocation


class BatchTuner:
    """`growth`: maximum batch, as a multiple of the last epoch's. `gain`: minimum relative gain in
    goodput for a change of the batch alone, at the end of an epoch.
    """

    def __init__(self, rules: BatchRules, *, growth: float, gain: float) -> None:
        self.models = GoodputModels(rules)
        self._growth, self._gain = growth, gain
        self._epoch_batch: dict[JobId, int] = {}  # at the end of each job's last epoch

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, ev.EpochFinished):
            held = view.job(event.job).held
            if held is not None:
                self._epoch_batch[event.job] = held.batch
        elif isinstance(event, ev.JobEnded):
            self._epoch_batch.pop(event.job, None)
            self.models.forget(event.job)

    def allocate(self, job: JobView, gpus: tuple[Gpu, ...]) -> Allocation:
        """An allocation with the best batch; with the script's own before the job has joined."""
        if job.description is None:
            return Allocation.as_scripted(gpus)
        nodes = len({gpu.node for gpu in gpus})
        batch, parts, _ = self.models.of(job).best(len(gpus), nodes, at_most=self._max_batch(job))
        return allocation(gpus, batch, parts)

    def after_epoch(self, job: JobView) -> tuple[Allocation, str] | None:
        """A better batch on the same GPUs, with the reason; None if the gain is too small."""
        now = job.wanted
        if job.pinned or job.description is None or now is None or not now.batch:
            return None
        model = self.models.of(job)
        gpus, nodes = now.n_gpus, now.n_nodes
        batch, parts, goodput = model.best(gpus, nodes, at_most=self._max_batch(job))
        gain = goodput / model.at(gpus, nodes, now.batch, now.micro_steps) - 1
        if gain <= self._gain or (batch, parts) == (now.batch, now.micro_steps):
            return None
        return (
            allocation(now.gpus, batch, parts),
            reasons.rebatched(now.batch, batch, gpus, reasons.BETTER_GOODPUT, speed=1 + gain),
        )

    def _max_batch(self, job: JobView) -> float:
        assert job.description is not None
        return self._growth * self._epoch_batch.get(job.id, job.description.base_batch)

    def save(self) -> dict[str, Any]:
        return {str(job): batch for job, batch in self._epoch_batch.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._epoch_batch = {JobId(job): int(batch) for job, batch in saved.items()}
