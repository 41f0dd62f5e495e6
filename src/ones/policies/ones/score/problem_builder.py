"""Builds the problem of the search from the jobs that may change now.

Jobs in transition are not part of the problem. The cost of a job at each number of GPUs follows
from its speed there (`choices`) and from flow time (`_flow_time`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Gpu, NodeState
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.policies.ones.predict.knowledge import JobStatus, Knowledge
from ones.policies.ones.score.choices import Choices, choices_of, most_gpus
from ones.policies.ones.score.flow import flow_weights, usual_sizes
from ones.policies.ones.score.problem import Problem
from ones.policies.ones.settings import OnesSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: speedup c^0.8 of sizes beyond those that a job may get
USUAL_SPEEDUP = 0.8
#: the setting `stay_share` for a job that grows: other jobs may need its new GPUs sooner
GROWN_SHARE = 0.25
#: quantile of the known lengths that an unmeasured job gets
GUESSED_QUANTILE = 0.25
#: minimum run of a job before its preemption: a multiple of its restart cost, and seconds,
LEAST_RUN, MOST_LEAST_RUN = 20.0, 300.0
#: unless other jobs gain this multiple of its value, or a job of a higher priority waits
PREEMPTION_CHARGE = 10.0
#: past use of its owner divides the weight of a job by up to 2 to the power of 1 plus this
PENALTY_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class PosedProblem:
    jobs: list[JobView]
    held_gpus: dict[JobId, tuple[Gpu, ...]]  # GPUs of each job on nodes that are up
    choices: list[Choices]
    remaining: Floats  # expected work of each job, in (effective) samples
    measured: list[bool]  # whether the job or its kind has a measured speed
    horizon: float  # expected seconds until the next change of a job
    problem: Problem

    def round_counts(self, counts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Rounds numbers of GPUs down to useful sizes."""
        sizes = [
            int(c.sizes[c.at(n)]) if n else 0
            for c, n in zip(self.choices, counts.tolist(), strict=True)
        ]
        return np.array(sizes, np.int32)


def build_problem(
    view: View,
    jobs: list[JobView],
    statuses: dict[JobId, JobStatus],
    work: Floats,
    known: Knowledge,
    settings: OnesSettings,
) -> PosedProblem | None:
    """Returns the problem of these jobs, or None if there are no GPUs. `work`: [draw, job]."""
    held_gpus = {job.id: _held_on_up_nodes(view, job) for job in jobs}
    gpus = len(view.free) + sum(map(len, held_gpus.values()))
    if not gpus:
        return None
    least = np.array([job.job.min_gpus for job in jobs], np.int32)
    held = np.array([len(held_gpus[job.id]) for job in jobs], np.int32)
    most = np.zeros(len(jobs), np.int32)
    choices = []
    for i, job in enumerate(jobs):
        status = statuses[job.id]
        most[i] = most_gpus(view, job, known, status, settings, gpus)
        choices.append(choices_of(view, job, int(most[i]), int(held[i]), known, status, settings))
    width = int(max(most.max(), held.max(), 1)) + 1
    score = _flow_time(view, jobs, choices, work, held, width, known, settings)
    _charge_early_preemptions(score["cost"], jobs, statuses, held, most)
    return PosedProblem(
        jobs,
        held_gpus,
        choices,
        work.mean(axis=0),
        [known.speeds.is_measured(job) for job in jobs],
        settings.stay_share * known.residence_times.mean_seconds(view.now),
        Problem(
            gpus=gpus,
            keys=np.array([job.number for job in jobs], np.int64),
            least=least,
            most=most,
            held=held,
            processed=np.array([job.run_seconds_at(view.now) for job in jobs]),
            use_all=False,
            **score,
        ),
    )


def changeable_jobs(view: View) -> list[JobView]:
    """Returns the jobs that are not in transition, in the order of submission."""
    return [job for job in view.jobs.values() if not job.pinned]


def _held_on_up_nodes(view: View, job: JobView) -> tuple[Gpu, ...]:
    """Returns the GPUs of a job on nodes that are up; none if they are fewer than its minimum, so
    that the whole job moves."""
    held = job.wanted.gpus if job.wanted else ()
    up = tuple(gpu for gpu in held if view.cluster.state_of(gpu) is NodeState.UP)
    return up if len(up) >= job.job.min_gpus else ()


def _flow_time(
    view: View,
    jobs: list[JobView],
    choices: list[Choices],
    work: Floats,
    held: NDArray[np.int32],
    width: int,
    known: Knowledge,
    settings: OnesSettings,
) -> dict[str, Floats]:
    """Returns cost and work of the problem: weighted speedup, less the cost of a change.

    "Work" is the weight of a job in each draw; "cost" is the value with its sign changed. A start
    is never charged: that would starve a job if its remaining work is estimated too low.
    """
    per_node = max(1, view.cluster.width)
    gpus = max(1, view.cluster.n_gpus)
    usual = usual_sizes(min(gpus, settings.most_gpus), per_node)
    single = np.array([c.rates[0] for c in choices])  # rate with the smallest size
    speedups = np.array([_speedup(c, usual) for c in choices])
    seconds = _guess_unmeasured(work / single, [known.speeds.is_measured(job) for job in jobs])
    weights = flow_weights(
        seconds,
        speedups,
        usual,
        gpus,
        done_seconds=np.array([known.effective_work.done(job) for job in jobs]) / single,
        ages=np.array([view.now - job.job.submitted_at for job in jobs]),
        ageing=settings.ageing,
    )
    priorities = np.array([job.priority - PENALTY_WEIGHT * job.penalty for job in jobs])
    weights *= np.exp2(np.clip(priorities, -20, 20))
    cost = np.zeros((len(jobs), width))
    middle = np.median(seconds, axis=0)
    residence = known.residence_times.mean_seconds(view.now)
    usual_horizon, grown_horizon = settings.stay_share * residence, GROWN_SHARE * residence
    for i, (job, (sizes, _, rates, _)) in enumerate(zip(jobs, choices, strict=True)):
        value = rates / rates[0]
        if held[i]:
            now = int(np.searchsorted(sizes, held[i]))
            horizon = np.minimum(usual_horizon, middle[i] / value)
            horizon[now + 1 :] = np.minimum(grown_horizon, horizon[now + 1 :])
            lost = settings.change_worth * job.switch_cost.rescale_seconds
            stopped = settings.change_worth * job.switch_cost.restart_seconds
            cost[i, 0] = value[now] * stopped / (usual_horizon + stopped)
            value = _speed_with_change(
                value, now, horizon, usual_horizon, lost, known.join_times.seconds
            )
        cost[i, 1:] = -_per_gpu_count(sizes, value, width)
    return {"cost": cost, "work": weights}


def _charge_early_preemptions(
    cost: Floats,
    jobs: list[JobView],
    statuses: dict[JobId, JobStatus],
    held: NDArray[np.int32],
    most: NDArray[np.int32],
) -> None:
    """Raises the cost of preempting a job that has just started, which would waste the start.

    Jobs are not protected from a waiting job of a higher priority.
    """
    urgent = max((jobs[i].priority for i in np.flatnonzero((held == 0) & (most > 0))), default=-inf)
    for i, job in enumerate(jobs):
        if job.priority < urgent:
            continue
        least_run = min(MOST_LEAST_RUN, LEAST_RUN * job.switch_cost.restart_seconds)
        if held[i] and statuses[job.id].since_start < least_run:
            cost[i, 0] -= PREEMPTION_CHARGE * cost[i, held[i]]


def _speed_with_change(
    speedup: Floats, now: int, horizon: Floats, usual_horizon: float, lost: float, idle: float
) -> Floats:
    """Returns the mean speedup of a job over `horizon` seconds after a change to each size.

    `now` is the index of the present size. A change pauses the job for `lost` seconds; a job that
    grows then keeps its speed for `idle` seconds, until its joining workers train.
    """
    value = speedup.copy()
    more, less = slice(now + 1, None), slice(None, now)
    value[more] *= horizon[more]
    value[more] = (value[more] + speedup[now] * idle) / (horizon[more] + lost + idle)
    value[less] *= horizon[less] / (horizon[less] + lost)
    # a job that shrinks will grow back later, with another pause and joining workers
    back = speedup[now] * lost + (speedup[now] - speedup[less]) * idle
    value[less] -= back / (usual_horizon + lost + idle)
    return value


def _guess_unmeasured(seconds: Floats, measured: list[bool]) -> Floats:
    """Replaces the lengths of unmeasured jobs by a low quantile of the others.

    To start such a job and measure it costs little; to leave a short job waiting costs more.
    """
    known = np.array(measured)
    if known.all() or not known.any():
        return seconds
    guess = np.quantile(seconds[:, known], GUESSED_QUANTILE, axis=1)
    return np.where(known, seconds, guess[:, None])


def _speedup(choices: Choices, usual: Ints) -> Floats:
    """Returns the speedup over one GPU at the usual sizes, extrapolated beyond the job's sizes."""
    known = np.searchsorted(choices.sizes, usual, side="right") - 1
    rates = np.maximum.accumulate(choices.rates)
    speedup: Floats = rates[np.maximum(known, 0)] / rates[0]
    last = choices.sizes[-1]
    beyond = usual > last
    speedup[beyond] = speedup[~beyond][-1] * (usual[beyond] / last) ** USUAL_SPEEDUP
    return speedup


def _per_gpu_count(sizes: Ints, values: Floats, width: int) -> Floats:
    """Returns values for 1, 2, ... GPUs: the value of the largest size within that number."""
    places = np.searchsorted(sizes, np.arange(1, width), side="right") - 1
    spread: Floats = values[np.maximum(places, 0)]
    return spread
