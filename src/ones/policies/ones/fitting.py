"""From numbers of GPUs to GPUs, and back: sizes that lie badly are chosen again.

The search takes every job for packed. Where its sizes end up on more nodes than they need, a job
may be better off with fewer GPUs, close together, and another may have use for the rest. So the
exact division is asked again, with such jobs held to what fits; of all that was found, the best
by real places is taken.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.core.view import View
from ones.models.sharing import OwnerRoom
from ones.policies.ones.placing import MOST_NODES, Places
from ones.policies.ones.problem import optimum
from ones.policies.ones.question import Question
from ones.policies.ones.spans import Judge, placed
from ones.policies.ones.speeds import Speeds

#: so often sizes are chosen again
ROUNDS = 4


def fitted(
    view: View,
    question: Question,
    counts: NDArray[np.int32],
    speeds: Speeds,
    *,
    stay: float,
    again: bool,
) -> Places:
    """Places for these numbers, or, `again`, for better ones."""
    judge = Judge(view, question, speeds, stay)
    best = placed(view, question, within_owners_room(view, question, counts), judge)
    if not again or len(view.cluster.nodes) > MOST_NODES:
        return best
    most = question.problem.most.copy()
    places, highest = best, -inf
    for _ in range(ROUNDS):
        smaller = judge.cramped(places)
        if not smaller:
            break
        highest = max(highest, judge.value(best))
        for i, size in smaller.items():
            most[i] = min(most[i], size)
        counts = question.rounded(optimum(replace(question.problem, most=most)))
        places = placed(view, question, within_owners_room(view, question, counts), judge)
        if judge.value(places) > highest:
            best = places
    return best


def within_owners_room(
    view: View, question: Question, counts: NDArray[np.int32]
) -> dict[JobId, int]:
    """The search knows each job's room, not what an owner's jobs take together."""
    room = OwnerRoom(view, question.jobs)
    sizes: dict[JobId, int] = {}
    for job, count in zip(question.jobs, counts.tolist(), strict=True):
        for size in (count, len(question.staying[job.id]), 0):
            if size <= count and room.take(job.job.owner, size):
                sizes[job.id] = size
                break
    return sizes
