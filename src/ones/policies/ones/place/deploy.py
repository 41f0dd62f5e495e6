"""Turns numbers of GPUs into a schedule: the GPUs and the batch of each job, with reasons.

A job keeps its GPUs if their number and its batch do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Gpu
from ones.core.job import JobId
from ones.core.schedule import Allocation, Schedule
from ones.core.view import JobView, View
from ones.policies.ones.place.reasons import Reasons
from ones.policies.ones.place.size_refinement import refine_sizes
from ones.policies.ones.predict.speeds import Speeds
from ones.policies.ones.score.choices import Choices
from ones.policies.ones.score.problem_builder import PosedProblem

#: least benefit of a change of the batch alone, as a multiple of its cost
BATCH_CHANGE_WORTH = 2.0
#: least gain in speed of a larger and of a smaller batch: the model is not more accurate
LARGER_BATCH_GAIN, SMALLER_BATCH_GAIN = 0.05, 0.25


def deploy(
    view: View,
    posed: PosedProblem,
    candidates: Sequence[NDArray[np.int32]],
    *,
    may_change: bool,
    batch_seconds: float,
    speeds: Speeds,
) -> tuple[Schedule, dict[JobId, str]]:
    """Returns the schedule with the best of the candidates, or with refined sizes, and the reason
    of each change. Candidates are in the order of their score without placement.

    `may_change`: running jobs may change; otherwise only new jobs start. `batch_seconds`: pause of
    a change of the batch alone.
    """
    horizon = posed.horizon
    places = refine_sizes(view, posed, candidates, speeds, again=may_change)
    edit = view.schedule.edit()
    notes: dict[JobId, str] = {}
    reasons = Reasons(view, posed, places, batch_seconds)
    for i, job in enumerate(posed.jobs):
        if job.id not in places:
            if job.wanted is not None:
                edit.drop(job.id)
                notes[job.id] = reasons.preempted(i)
            else:
                notes[job.id] = reasons.waits(i)
            continue
        gpus = places[job.id]
        left = float(posed.remaining[i])
        allocation = allocate(
            job, posed.choices[i], left, gpus, horizon=horizon, cost=batch_seconds
        )
        if allocation != job.wanted:
            edit.put(job.id, allocation)
            notes[job.id] = reasons.changed(i, allocation)
    return edit.done(), notes


def allocate(
    job: JobView,
    choices: Choices,
    remaining: float,
    gpus: tuple[Gpu, ...],
    *,
    horizon: float,
    cost: float,
) -> Allocation:
    """Returns the allocation of a job on these GPUs.

    If the job holds these GPUs already, its batch changes only if the change, which takes `cost`
    seconds, pays within `horizon` seconds, or if the batch is below the user's smallest one.
    """
    size = len(gpus)
    place = choices.at(size)
    batch = max(int(choices.batches[place]), size)
    if not choices.batches[place]:
        return Allocation.as_scripted(gpus)
    if job.wanted is not None and job.wanted.gpus == gpus:
        speed, now = float(choices.rates[place]), choices.present
        saved = min(remaining / now, horizon) * (1 - now / speed) if now else inf
        gain = LARGER_BATCH_GAIN if batch > job.wanted.batch else SMALLER_BATCH_GAIN
        worth_it = saved >= BATCH_CHANGE_WORTH * cost and now <= (1 - gain) * speed
        too_small = job.wanted.batch < (job.job.min_batch or 1)
        if batch == job.wanted.batch or not (worth_it or too_small):
            return job.wanted
    return Allocation.even(gpus, batch, job.local_limit)
