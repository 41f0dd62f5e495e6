"""Two ways to learn from episodes of the same scenario: cross entropy and policy gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ones.lab.drl.episodes import Episode
from ones.policies.drl.network import Floats

#: share of the episodes that are imitated
ELITE = 0.25
ENTROPY = 0.01
GRID = 60  # points in time of the baseline

#: weights, observations, choices, their worth, weight of the entropy -> gradient
Slope = Callable[[Floats, Sequence[Any], Sequence[int], Floats, float], Floats]
Learner = Callable[[Floats, Sequence[Episode], Slope], Floats]


def cross_entropy(weights: Floats, episodes: Sequence[Episode], slope: Slope) -> Floats:
    """Makes the decisions of the best episodes more likely, as Chic does."""
    elite = sorted(episodes, key=lambda e: e.total)[: max(1, round(ELITE * len(episodes)))]
    return _slope(slope, weights, elite, [np.ones(len(e.looks)) for e in elite])


def policy_gradient(weights: Floats, episodes: Sequence[Episode], slope: Slope) -> Floats:
    """Makes decisions more likely in proportion to their advantage."""
    advantage = advantages(episodes)
    return _slope(slope, weights, episodes, advantage, entropy=ENTROPY)


def advantages(episodes: Sequence[Episode]) -> list[Floats]:
    """Reward to go minus its mean at that time over all episodes, in standard deviations.

    All episodes of a scenario have the same arrivals, so their effect cancels.
    """
    last = max(float(e.times[-1]) for e in episodes)
    grid = np.linspace(0.0, last, GRID)
    usual = np.mean([np.interp(grid, e.times, e.reward_to_go, right=0.0) for e in episodes], axis=0)
    advantage = [e.reward_to_go - np.interp(e.times, grid, usual) for e in episodes]
    spread = float(np.concatenate(advantage).std())
    return [w / spread if spread else w for w in advantage]


LEARNERS: dict[str, Learner] = {"cem": cross_entropy, "pg": policy_gradient}


def _slope(
    slope: Slope,
    weights: Floats,
    episodes: Sequence[Episode],
    advantage: Sequence[Floats],
    *,
    entropy: float = 0.0,
) -> Floats:
    looks = [look for e in episodes for look in e.looks]
    chosen = [choice for e in episodes for choice in e.chosen]
    # skip decisions without an alternative
    real = [i for i, look in enumerate(looks) if int(look.valid.sum()) > 1]
    if not real:
        return np.zeros(len(weights))
    looks = [looks[i] for i in real]
    picked = [chosen[i] for i in real]
    return slope(weights, looks, picked, np.concatenate(advantage)[real], entropy)
