"""What the search is asked: the jobs that may be changed now, as arrays.

Jobs in transition keep what they are to have and are no part of it. What a job costs with each
number of GPUs that it may have (`choices`) follows from its speed there, by flow time
(`_flow_time`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Gpu, NodeState
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.policies.ones.choices import Choices, JobStatus, Knowledge, choices_of, most_gpus
from ones.policies.ones.flow import flow_weights, usual_sizes
from ones.policies.ones.problem import Problem
from ones.policies.ones.settings import OnesSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: c GPUs make a job of which nothing was measured c^0.8 times as fast
USUAL_SPEEDUP = 0.8
#: as the setting `stay_share`, for a job that grows: others may soon need what it grows by
GROWN_SHARE = 0.25
#: where a job of which nothing is known is put among the others, by length
GUESSED_QUANTILE = 0.25
#: a job is preempted only this many times its restart cost after its start, up to a maximum,
LEAST_RUN, MOST_LEAST_RUN = 20.0, 300.0
#: unless others gain so many times its speed by it, or a job of a higher priority waits
PREEMPTION_CHARGE = 10.0


@dataclass(frozen=True, slots=True)
class PosedProblem:
    jobs: list[JobView]
    held_gpus: dict[JobId, tuple[Gpu, ...]]  # what each holds on nodes that are up
    choices: list[Choices]
    remaining: Floats  # expected work of each job, in (effective) samples
    measured: list[bool]  # is the speed of each known, or of another of its kind?
    horizon: float  # seconds after which the next change of a job is to be expected
    problem: Problem

    def round_counts(self, counts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Without GPUs that would be of no use to the job that has them."""
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
    """None when there is nothing to share. `work` has a row for each draw and a column for each
    of these jobs."""
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
            new=np.zeros(len(jobs), np.bool_),
            processed=np.array([job.run_seconds_at(view.now) for job in jobs]),
            use_all=False,
            **score,
        ),
    )


def changeable_jobs(view: View) -> list[JobView]:
    """Jobs that are not in transition, by order of submission."""
    return [job for job in view.jobs.values() if not job.pinned]


def _held_on_up_nodes(view: View, job: JobView) -> tuple[Gpu, ...]:
    """Too few of them for the job: none, so that it moves as a whole."""
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
    """What a job's speed-up is worth to all, less what a change loses: to be maximised.

    "Work" of the problem is the weight here, in every draw. A start is never charged: that
    would starve a job whose end is wrongly thought near.
    """
    per_node = max(1, view.cluster.width)
    gpus = max(1, view.cluster.n_gpus)
    usual = usual_sizes(min(gpus, settings.most_gpus), per_node)
    single = np.array([c.rates[0] for c in choices])  # with one GPU, or the least it takes
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
    weights *= np.exp2(np.clip([job.priority for job in jobs], -20, 20))
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
    return {"cost": cost, "extra": np.zeros_like(cost), "work": weights}


def _charge_early_preemptions(
    cost: Floats,
    jobs: list[JobView],
    statuses: dict[JobId, JobStatus],
    held: NDArray[np.int32],
    most: NDArray[np.int32],
) -> None:
    """Protects jobs that have just started: a preemption would waste the start. Jobs are not
    protected from a waiting job of a higher priority."""
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
    """The mean speed of a job that goes from its size, the one at `now`, to another for `stay`
    seconds: after standing still for `lost`, and, if it grows, as it is for another `idle`, in
    which the GPUs that it gets do nothing."""
    value = speedup.copy()
    more, less = slice(now + 1, None), slice(None, now)
    value[more] *= horizon[more]
    value[more] = (value[more] + speedup[now] * idle) / (horizon[more] + lost + idle)
    value[less] *= horizon[less] / (horizon[less] + lost)
    # what is taken away is given back one day, for which it stands still, and waits, again
    back = speedup[now] * lost + (speedup[now] - speedup[less]) * idle
    value[less] -= back / (usual_horizon + lost + idle)
    return value


def _guess_unmeasured(seconds: Floats, measured: list[bool]) -> Floats:
    """Of a job that nobody has measured, nor one of its kind, nothing is known: it is taken for
    one of the shorter ones. To find out costs little; never to find out may cost a lot."""
    known = np.array(measured)
    if known.all() or not known.any():
        return seconds
    guess = np.quantile(seconds[:, known], GUESSED_QUANTILE, axis=1)
    return np.where(known, seconds, guess[:, None])


def _speedup(choices: Choices, usual: Ints) -> Floats:
    """Over one GPU, at all sizes: beyond what may be had now it is taken to go on as usual."""
    known = np.searchsorted(choices.sizes, usual, side="right") - 1
    rates = np.maximum.accumulate(choices.rates)
    speedup: Floats = rates[np.maximum(known, 0)] / rates[0]
    last = choices.sizes[-1]
    beyond = usual > last
    speedup[beyond] = speedup[~beyond][-1] * (usual[beyond] / last) ** USUAL_SPEEDUP
    return speedup


def _per_gpu_count(sizes: Ints, values: Floats, width: int) -> Floats:
    """A value for 1, 2, ... GPUs: that of the largest size within them."""
    places = np.searchsorted(sizes, np.arange(1, width), side="right") - 1
    spread: Floats = values[np.maximum(places, 0)]
    return spread
