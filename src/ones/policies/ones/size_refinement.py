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
from ones.policies.ones.placement_score import PlacementScore, place_jobs
from ones.policies.ones.placing import MOST_NODES, Places
from ones.policies.ones.problem import optimum
from ones.policies.ones.problem_builder import PosedProblem
from ones.policies.ones.speeds import Speeds

#: so often sizes are chosen again
ROUNDS = 4
#: jobs, of all candidates together: to place them takes time
MOST_PLACED = 1024


def refine_sizes(
    view: View,
    posed: PosedProblem,
    candidates: Sequence[NDArray[np.int32]],
    speeds: Speeds,
    *,
    again: bool,
) -> Places:
    """Places for one of these divisions, or, `again`, for a better one."""
    score = PlacementScore(view, posed, speeds)

    def place(counts: NDArray[np.int32]) -> Places:
        sizes = within_quotas(view, posed, counts)
        return place_jobs(view, posed, sizes, score)

    best = place(candidates[0])
    if not again or len(view.cluster.nodes) > MOST_NODES or not score.is_spread(best):
        return best
    several = max(1, MOST_PLACED // len(posed.jobs))
    others = {c.tobytes(): c for c in candidates[1:several]}  # rounded, many are alike
    others.pop(candidates[0].tobytes(), None)
    found = [best, *map(place, others.values())]
    values = [score.value(places) for places in found]
    most = posed.problem.most.copy()
    best = found[int(np.argmax(values))]
    places, highest = best, max(values)
    for _ in range(ROUNDS):
        smaller = score.smaller_sizes(places)
        if not smaller:
            break
        for i, size in smaller.items():
            most[i] = min(most[i], size)
        places = place(posed.round_counts(optimum(replace(posed.problem, most=most))))
        value = score.value(places)
        if value > highest:
            best, highest = places, value
    return best


def within_quotas(view: View, posed: PosedProblem, counts: NDArray[np.int32]) -> dict[JobId, int]:
    """The search knows each job's room, not what an owner's jobs take together."""
    room = OwnerQuota(view, posed.jobs)
    sizes: dict[JobId, int] = {}
    for job, count in zip(posed.jobs, counts.tolist(), strict=True):
        for size in (count, len(posed.held_gpus[job.id]), 0):
            if size <= count and room.take(job.job.owner, size):
                sizes[job.id] = size
                break
    return sizes
