"""The batch of each job over time: the best one for its GPUs, grown step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.schedule import Allocation
from ones.core.view import JobView, View
from ones.models.adaptive_batch import BatchRules, JobModels, allocation


class BatchChanges:
    """`growth` limits a batch to so many times that of the last epoch; at the end of an epoch
    it is changed if that brings more than `gain`."""

    def __init__(self, rules: BatchRules, *, growth: float, gain: float) -> None:
        self.models = JobModels(rules)
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

    def on(self, job: JobView, gpus: tuple[Gpu, ...]) -> Allocation:
        """With the best batch on these GPUs; before it has joined, with the script's own."""
        if job.description is None:
            return Allocation.as_scripted(gpus)
        nodes = len({gpu.node for gpu in gpus})
        batch, parts, _ = self.models.of(job).best(len(gpus), nodes, at_most=self._at_most(job))
        return allocation(gpus, batch, parts)

    def after_epoch(self, job: JobView) -> tuple[Allocation, str] | None:
        """A better batch on the same GPUs and why, if it is worth the change."""
        now = job.wanted
        if job.pinned or job.description is None or now is None or not now.batch:
            return None
        model = self.models.of(job)
        gpus, nodes = now.n_gpus, now.n_nodes
        batch, parts, goodput = model.best(gpus, nodes, at_most=self._at_most(job))
        gain = goodput / model.at(gpus, nodes, now.batch, now.micro_steps) - 1
        if gain <= self._gain or (batch, parts) == (now.batch, now.micro_steps):
            return None
        return (
            allocation(now.gpus, batch, parts),
            f"batch {now.batch} -> {batch} on the same GPUs: goodput +{100 * gain:.0f} %",
        )

    def _at_most(self, job: JobView) -> float:
        assert job.description is not None
        return self._growth * self._epoch_batch.get(job.id, job.description.base_batch)

    def save(self) -> dict[str, Any]:
        return {str(job): batch for job, batch in self._epoch_batch.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._epoch_batch = {JobId(job): int(batch) for job, batch in saved.items()}
