"""How fast a job would be in a configuration that it has not tried: a fit to those it has.

    T_step = s (a + b part) + sync        sync = 0 | one node | several nodes

Linear, so it is solved exactly (non-negative least squares on relative errors). What
has not been measured is assumed to cost nothing: optimism makes a policy try it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from ones.core.job import Configuration, StepTime

#: over a network, synchronising costs at least so much more than inside a node
NETWORK_FACTOR = 1.1
#: no step is predicted to be shorter than this part of the shortest one measured: a fit may blame
#: all of the time on synchronising, and a step of 0 s would make every rate infinite
LEAST_PART = 1e-3


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Seconds; what is zero has not been seen."""

    fixed: float
    per_sample: float
    node_sync: float = 0.0
    network_sync: float = 0.0
    least: float = 0.0  # no step is shorter

    @property
    def network_seconds(self) -> float:
        """Of a step on several nodes: what goes over the network."""
        return max(self.network_sync, NETWORK_FACTOR * self.node_sync)

    def step_seconds(self, *, gpus: int, nodes: int, batch: int, micro_steps: int) -> float:
        part = -(-batch // (gpus * micro_steps))
        seconds = micro_steps * (self.fixed + self.per_sample * part)
        if nodes > 1:
            seconds += self.network_seconds
        elif gpus > 1:
            seconds += self.node_sync
        return max(seconds, self.least)

    def all_step_seconds(
        self,
        gpus: NDArray[np.int64],
        nodes: NDArray[np.int64],
        batches: NDArray[np.int64],
        micro_steps: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """The same for many configurations at once."""
        part = -(-batches // (gpus * micro_steps))
        sync = np.where(nodes > 1, self.network_seconds, np.where(gpus > 1, self.node_sync, 0.0))
        seconds = micro_steps * (self.fixed + self.per_sample * part) + sync
        return np.maximum(seconds, self.least)


def fit_speed(profile: Mapping[Configuration, StepTime]) -> SpeedModel | None:
    """None when nothing has been measured."""
    if not profile:
        return None
    least = LEAST_PART * min(time.seconds for time in profile.values())
    points = [
        (c.micro_steps, -(-c.batch // (c.gpus * c.micro_steps)), c.gpus, c.nodes, t.seconds)
        for c, t in sorted(profile.items())
    ]
    if len({part for _, part, _, _, _ in points}) == 1:
        return _fit_one_part(points, least)
    # without a step on one GPU nobody knows what synchronising takes: none of it, with the fewest
    alone = min(c for _, _, c, _, _ in points)
    rows = np.array(
        [[s, s * part, c > alone and n == 1, c > alone and n > 1] for s, part, c, n, _ in points],
        float,
    )
    seconds = np.array([t for *_, t in points])
    fixed, per_sample, node, network = nnls(rows / seconds[:, None], np.ones(len(points)))[0]
    return SpeedModel(float(fixed), float(per_sample), float(node), float(network), least)


def _fit_one_part(points: list[tuple[int, int, int, int, float]], least: float) -> SpeedModel:
    """One size of part says nothing of how the time divides: half of it is taken as fixed."""
    fewest = min(c for _, _, c, _, _ in points)
    steps, part, _, _, seconds = next(p for p in points if p[2] == fewest)
    gradient = seconds / steps
    beyond = {True: [0.0], False: [0.0]}
    for s, _, c, n, t in points:
        if c > 1:
            beyond[n > 1].append(max(0.0, t - s * gradient))
    node, network = max(beyond[False]), max(beyond[True])
    return SpeedModel(gradient / 2, gradient / 2 / part, node, network, least)
