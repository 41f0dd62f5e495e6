"""Places the sizes that the search found, and refines sizes that lead to a bad placement.

The search assumes that every job is packed. A job that spans more nodes than necessary may be
faster with fewer GPUs, close together. So the exact division is computed again with smaller limits
for such jobs; the result with the best score on real nodes is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.core.view import View
from ones.models.sharing import OwnerQuota
from ones.policies.ones.place.placement_score import PlacementScore, place_jobs
from ones.policies.ones.place.placing import MOST_NODES, Places
from ones.policies.ones.predict.speeds import Speeds
from ones.policies.ones.score.problem import optimum
from ones.policies.ones.score.problem_builder import PosedProblem

#: largest number of refinements
ROUNDS = 4
#: jobs that are placed, in all candidates together: it limits the time of a decision
MOST_PLACED = 1024


def refine_sizes(
    view: View,
    posed: PosedProblem,
    candidates: Sequence[NDArray[np.int32]],
    speeds: Speeds,
    *,
    again: bool,
) -> Places:
    """Returns GPUs for the first candidate; if `again`, for the best candidate or refined sizes."""
    score = PlacementScore(view, posed, speeds)

    def place(counts: NDArray[np.int32]) -> Places:
        sizes = within_quotas(view, posed, counts)
        return place_jobs(view, posed, sizes, score)

    best = place(candidates[0])
    if not again or len(view.cluster.nodes) > MOST_NODES or not score.is_spread(best):
        return best
    several = max(1, MOST_PLACED // len(posed.jobs))
    others = {c.tobytes(): c for c in candidates[1:several]}  # many are equal after rounding
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
    """Returns sizes within the quotas of owners: the search checks quotas only job by job."""
    room = OwnerQuota(view, posed.jobs)
    sizes: dict[JobId, int] = {}
    for job, count in zip(posed.jobs, counts.tolist(), strict=True):
        for size in (count, len(posed.held_gpus[job.id]), 0):
            if size <= count and room.take(job.job.owner, size):
                sizes[job.id] = size
                break
    return sizes
