"""From numbers of GPUs to GPUs, and back: sizes that lie badly are chosen again.

The search takes every job for packed. Where its sizes end up on more nodes than they need, a job
may be better off with fewer GPUs, close together, and another may have use for the rest. So the
exact division is asked again, with such jobs held to what fits; of all that was found, the best
by real places is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.core.view import View
from ones.models.sharing import OwnerQuota
from ones.policies.ones.placing import MOST_NODES, Places
from ones.policies.ones.problem import optimum
from ones.policies.ones.question import Question
from ones.policies.ones.spans import Judge, placed
from ones.policies.ones.speeds import Speeds

#: so often sizes are chosen again
ROUNDS = 4
#: jobs, of all candidates together: to place them takes time
MOST_PLACED = 1024


def fitted(
    view: View,
    question: Question,
    candidates: Sequence[NDArray[np.int32]],
    speeds: Speeds,
    *,
    again: bool,
) -> Places:
    """Places for one of these divisions, or, `again`, for a better one."""
    judge = Judge(view, question, speeds)

    def placed_as(counts: NDArray[np.int32]) -> Places:
        sizes = within_owners_room(view, question, counts)
        return placed(view, question, sizes, judge)

    best = placed_as(candidates[0])
    if not again or len(view.cluster.nodes) > MOST_NODES or not judge.is_spread(best):
        return best
    several = max(1, MOST_PLACED // len(question.jobs))
    others = {c.tobytes(): c for c in candidates[1:several]}  # rounded, many are alike
    others.pop(candidates[0].tobytes(), None)
    found = [best, *map(placed_as, others.values())]
    values = [judge.value(places) for places in found]
    most = question.problem.most.copy()
    best = found[int(np.argmax(values))]
    places, highest = best, max(values)
    for _ in range(ROUNDS):
        smaller = judge.cramped(places)
        if not smaller:
            break
        for i, size in smaller.items():
            most[i] = min(most[i], size)
        places = placed_as(question.rounded(optimum(replace(question.problem, most=most))))
        value = judge.value(places)
        if value > highest:
            best, highest = places, value
    return best


def within_owners_room(
    view: View, question: Question, counts: NDArray[np.int32]
) -> dict[JobId, int]:
    """The search knows each job's room, not what an owner's jobs take together."""
    room = OwnerQuota(view, question.jobs)
    sizes: dict[JobId, int] = {}
    for job, count in zip(question.jobs, counts.tolist(), strict=True):
        for size in (count, len(question.staying[job.id]), 0):
            if size <= count and room.take(job.job.owner, size):
                sizes[job.id] = size
                break
    return sizes
