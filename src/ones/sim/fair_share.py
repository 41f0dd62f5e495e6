"""Finish-time fairness of a run, as Themis defines it.

ρ of a job = completion time / completion time alone on an equal share of the cluster. The share is
GPUs / N, where N is the mean number of unfinished jobs while the job was in the system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor

import numpy as np

from ones.core.cluster import Cluster
from ones.core.job import Job, JobId
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.sim.lengths import Truth, epochs_to_end, physics_of
from ones.sim.physics import JobPhysics
from ones.workload.trace import Trace

#: batches that the job alone may have, as multiples of its own
BATCH_FACTORS = (1, 2, 4, 8, 16, 32)


def finish_time_fairness(
    state: State,
    trace: Trace,
    gpus: int,
    physics: Callable[[Truth], JobPhysics] = physics_of,
) -> dict[JobId, float]:
    """ρ of every completed job; above 1, an equal share would have been better for the job."""
    entries = {entry.job.id: entry for entry in trace.jobs}
    contention = _mean_present(state)
    found = {}
    for outcome in state.ended.values():
        if outcome.reason.completed and outcome.id in entries:
            entry = entries[outcome.id]
            alone = seconds_alone(
                entry.job, entry.training, physics(entry.training), gpus / contention[outcome.id]
            )
            found[outcome.id] = outcome.completion_seconds / alone
    return found


def seconds_alone(job: Job, training: Truth, physics: JobPhysics, share: float) -> float:
    """Expected completion time on a share of the cluster, with the best fixed size and batch.

    With fewer GPUs than the smallest size, the job takes turns on that size.
    """
    least = job.min_gpus
    most = max(least, floor(share) if job.max_gpus is None else min(job.max_gpus, floor(share)))
    sizes = sorted({least, most, *(1 << i for i in range(most.bit_length()))})
    batches = [training.base_batch]
    if job.elastic:
        batches = [factor * training.base_batch for factor in BATCH_FACTORS]
    if batches[-1] < least:  # a worker has at least one sample
        batches.append(least)
    best = min(
        _training_seconds(training, physics, gpus, batch)
        for gpus in sizes
        if least <= gpus <= most
        for batch in batches
        if gpus <= batch <= max(training.dataset_size, gpus)
    )
    return physics.switch.first_start + best * max(1.0, least / share)


def _training_seconds(training: Truth, physics: JobPhysics, gpus: int, batch: int) -> float:
    places = list(Cluster.of(gpus).gpus())
    allocation = Allocation.even(places, batch, physics.max_local_batch)
    steps = ceil(training.dataset_size / batch)
    epoch = steps * physics.step_seconds(allocation) + physics.epoch_rules.load
    return epochs_to_end(training, physics, batch) * epoch


def _mean_present(state: State) -> Mapping[JobId, float]:
    """Mean number of unfinished jobs while each ended job was in the system, itself included."""
    ended = list(state.ended.values())
    arrivals = [o.submitted_at for o in ended]
    arrivals += [record.job.submitted_at for record in state.records.values()]
    times = np.array(sorted({*arrivals, *(o.ended_at for o in ended)}))
    present = np.searchsorted(np.sort(arrivals), times, side="right") - np.searchsorted(
        np.sort([o.ended_at for o in ended]), times, side="right"
    )
    job_seconds = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(times))])

    def until(at: float) -> float:
        return float(np.interp(at, times, job_seconds))

    return {
        o.id: (until(o.ended_at) - until(o.submitted_at)) / o.completion_seconds
        if o.completion_seconds
        else 1.0
        for o in ended
    }
