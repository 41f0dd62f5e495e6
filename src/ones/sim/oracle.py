"""The true remaining work of each job of a trace, only for policies that are labelled oracles.

Remaining work = total epochs at the given batch - epochs reported so far. That is exact for jobs
that keep their batch. The total uses the noise of the run's own seed, so it is the epoch after
which the stop rule really ends the job.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil

from ones.core.cluster import Cluster
from ones.core.job import Job, JobId
from ones.core.schedule import Allocation
from ones.core.view import JobView
from ones.models.oracle import Oracle, RemainingWork
from ones.sim.lengths import Truth, physics_of
from ones.sim.physics import JobPhysics
from ones.sim.training_model import accuracy_noise
from ones.stopping import Track, after_epoch
from ones.workload.generate import MOST_EPOCHS
from ones.workload.trace import Trace

#: remaining epochs assumed for a job that has outlived its computed total
OVERDUE_EPOCHS = 1.0


def oracle_of(
    trace: Trace,
    *,
    seed: int,
    gpus_per_node: int = 4,
    physics: Callable[[Truth], JobPhysics] = physics_of,
) -> Oracle:
    """An oracle for every job of the trace, in a simulation with this seed and training model."""
    entries = {entry.job.id: (number, entry) for number, entry in enumerate(trace.jobs)}

    @cache
    def length(job: JobId, batch: int) -> float:
        number, entry = entries[job]
        laws = physics(entry.training)
        return _epochs(number, entry.job, laws, batch, seed)

    @cache
    def epoch_seconds(job: JobId, gpus: int, batch: int) -> float:
        training = entries[job][1].training
        laws = physics(training)
        places = Cluster.of(gpus, gpus_per_node).gpus()
        allocation = Allocation.even(places, batch, laws.max_local_batch)
        return ceil(training.dataset_size / batch) * laws.step_seconds(allocation)

    def ahead(view: JobView, gpus: int, batch: int) -> RemainingWork:
        batch = max(batch or entries[view.id][1].training.base_batch, gpus)
        left = length(view.id, batch) - view.epochs
        return RemainingWork(max(left, OVERDUE_EPOCHS), epoch_seconds(view.id, gpus, batch))

    return ahead


def _epochs(number: int, job: Job, physics: JobPhysics, batch: int, seed: int) -> float:
    """Epochs at a fixed batch until the job ends, as the engine counts them."""
    death = physics.death
    progress, track = 0.0, Track()
    evaluates = physics.epoch_rules.evaluation is not None
    if evaluates:
        loss, accuracy = physics.loss(0.0), physics.accuracy(0.0, 0.0)
        track, _ = after_epoch(job.stop, track, loss=loss, accuracy=accuracy)
    for epoch in range(1, MOST_EPOCHS + 1):
        worth = physics.efficiency(batch, progress)
        if death is not None and death.epochs is not None and death.epochs <= epoch:
            return death.epochs
        if death is not None and death.progress is not None and death.progress <= progress + worth:
            return epoch - 1 + (death.progress - progress) / worth
        progress += worth
        accuracy = physics.accuracy(progress, accuracy_noise(seed, number, epoch + evaluates))
        track, stop = after_epoch(job.stop, track, loss=physics.loss(progress), accuracy=accuracy)
        if stop is not None or (job.epochs is not None and epoch >= job.epochs):
            return float(epoch)
    return float(MOST_EPOCHS)
