"""What the search is asked: the jobs that may be changed now, as arrays.

Jobs in transition keep what they are to have and are no part of it. How many GPUs a job
may have follows from its batch limit R_j and the share of one GPU; what it costs with
each number of them, from its speed there (Eq. 5 to 8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Gpu, NodeState
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.policies.ones.limits import BatchLimits
from ones.policies.ones.problem import Problem
from ones.policies.ones.settings import OnesSettings
from ones.policies.ones.speeds import Speeds

#: samples of an epoch of a job that has not joined, when no other job can tell
UNKNOWN_DATASET = 10_000


@dataclass(frozen=True, slots=True)
class Question:
    jobs: list[JobView]
    staying: dict[JobId, tuple[Gpu, ...]]  # what each holds on nodes that are up
    batches: list[NDArray[np.int64]]  # of each job, with 1, 2, ... GPUs; 0: the script's own
    rates: list[NDArray[np.float64]]  # (effective) samples per second, likewise
    problem: Problem


@dataclass(frozen=True, slots=True)
class Standing:
    """What the policy knows of a job beside its view."""

    new: bool  # never deployed
    may_shrink: bool  # it has stayed long enough
    last_batch: int  # that it trained with an epoch ago; 0: it has not


def ask(
    view: View,
    standings: dict[JobId, Standing],
    work: NDArray[np.float64],
    limits: BatchLimits,
    speeds: Speeds,
    settings: OnesSettings,
) -> Question | None:
    """None when there is nothing to share. `work` has a row for each draw and a column for each
    movable job, in their order."""
    jobs = movable(view)
    staying = {job.id: _on_nodes_that_are_up(view, job) for job in jobs}
    gpus = len(view.free) + sum(map(len, staying.values()))
    if not gpus:
        return None
    per_node = max(1, view.cluster.width)
    least = np.array([job.job.min_gpus for job in jobs], np.int32)
    held = np.array([len(staying[job.id]) for job in jobs], np.int32)
    most = np.zeros(len(jobs), np.int32)
    batches, rates = [], []
    for i, job in enumerate(jobs):
        standing = standings[job.id]
        most[i] = _most_gpus(view, job, limits, settings, gpus)
        if not standing.may_shrink and 0 < held[i] <= most[i]:
            least[i] = held[i]
        sizes = np.arange(1, max(1, int(most[i]), int(held[i])) + 1)
        highest = _batches(job, sizes, limits.of(job), standing, settings)
        if settings.batch == "goodput" and job.description is not None:
            chosen, rate = speeds.best_batches(job, highest, per_node)
        else:
            chosen, rate = highest, speeds.samples_per_second(job, highest, per_node)
        batches.append(chosen)
        rates.append(rate)
    return Question(
        jobs,
        staying,
        batches,
        rates,
        Problem(
            gpus=gpus,
            keys=np.array([job.number for job in jobs], np.int64),
            least=least,
            most=most,
            held=held,
            new=np.array([standings[job.id].new for job in jobs], np.bool_),
            processed=np.array([job.run_seconds_at(view.now) for job in jobs]),
            work=work,
            **_costs(jobs, rates, held, least, settings),
        ),
    )


def movable(view: View) -> list[JobView]:
    """Jobs that are not in transition, by order of submission."""
    return [job for job in view.jobs.values() if not job.pinned]


def _on_nodes_that_are_up(view: View, job: JobView) -> tuple[Gpu, ...]:
    held = job.wanted.gpus if job.wanted else ()
    return tuple(gpu for gpu in held if view.cluster.state_of(gpu) is NodeState.UP)


def _most_gpus(
    view: View, job: JobView, limits: BatchLimits, settings: OnesSettings, gpus: int
) -> int:
    """As many as R_j feeds with the share of one GPU; a job that is not warm starts small."""
    least, owner_room = job.job.min_gpus, view.room(job.job.owner)
    most = least
    if job.description is not None and limits.is_warm(job):
        share = min(job.description.base_batch, job.local_limit or job.description.base_batch)
        most = max(least, limits.of(job) // share)
    most = min(most, settings.most_gpus, gpus, job.max_gpus or gpus)
    if owner_room is not None:
        most = min(most, (job.wanted.n_gpus if job.wanted else 0) + owner_room)
    return most if most >= least else 0


def _batches(
    job: JobView,
    sizes: NDArray[np.int64],
    limit: int,
    standing: Standing,
    settings: OnesSettings,
) -> NDArray[np.int64]:
    """min(R_j, what memory holds), and no sudden growth (§3.3.2)."""
    if job.description is None:
        return np.zeros(len(sizes), np.int64)
    local = job.local_limit or job.description.base_batch
    most = np.minimum(limit, sizes * local)
    if standing.last_batch:
        most = np.minimum(most, int(settings.growth * standing.last_batch))
    return np.maximum(most, sizes).astype(np.int64)


def _costs(
    jobs: list[JobView],
    rates: list[NDArray[np.float64]],
    held: NDArray[np.int32],
    least: NDArray[np.int32],
    settings: OnesSettings,
) -> dict[str, NDArray[np.float64]]:
    """GPU-seconds per sample with c GPUs (c_j / X_j of Eq. 8), and what a change adds."""
    width = max((len(row) for row in rates), default=0) + 1
    cost = np.zeros((len(jobs), width))
    extra = np.zeros((len(jobs), width))
    for i, (job, row) in enumerate(zip(jobs, rates, strict=True)):
        sizes = np.arange(1, len(row) + 1)
        cost[i, 1 : len(row) + 1] = sizes / row
        cost[i, len(row) + 1 :] = cost[i, len(row)]
        start = min(int(least[i]), len(row))
        cost[i, 0] = settings.waiting_charge * cost[i, start]
        if settings.switching_cost and held[i]:
            extra[i, 1:] = job.switch_cost.rescale_seconds * np.arange(1, width)
            extra[i, 0] = job.switch_cost.restart_seconds * held[i]
            if held[i] < width:
                extra[i, held[i]] = 0.0
    return {"cost": cost, "extra": extra}
