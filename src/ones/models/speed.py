"""Step time model of a job, fitted to the configurations that it was measured in.

    T_step = s (a + b part) + sync        sync = 0 | one node | several nodes

It is linear, so it is solved exactly (non-negative least squares of relative errors). Costs that
were not measured are assumed to be zero: optimism makes a policy try such a configuration once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from ones.core.job import Configuration, StepTime

#: minimum cost of synchronisation over a network, as a multiple of that inside a node
NETWORK_FACTOR = 1.1
#: minimum predicted step, relative to the shortest one measured: a fit may explain all of the time
#: by synchronisation, and a step of 0 s would make every rate infinite
LEAST_PART = 1e-3


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Seconds; 0: not measured."""

    fixed: float
    per_sample: float
    node_sync: float = 0.0
    network_sync: float = 0.0
    least: float = 0.0  # lower bound of a step

    @property
    def network_seconds(self) -> float:
        """Seconds of synchronisation in a step over several nodes."""
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
        """`step_seconds` of many configurations at once."""
        part = -(-batches // (gpus * micro_steps))
        sync = np.where(nodes > 1, self.network_seconds, np.where(gpus > 1, self.node_sync, 0.0))
        seconds = micro_steps * (self.fixed + self.per_sample * part) + sync
        return np.maximum(seconds, self.least)


def fit_speed(profile: Mapping[Configuration, StepTime]) -> SpeedModel | None:
    """Fits the model to measured step times; None without measurements."""
    if not profile:
        return None
    least = LEAST_PART * min(time.seconds for time in profile.values())
    points = [
        (c.micro_steps, -(-c.batch // (c.gpus * c.micro_steps)), c.gpus, c.nodes, t.seconds)
        for c, t in sorted(profile.items())
    ]
    if len({part for _, part, _, _, _ in points}) == 1:
        return _fit_one_part(points, least)
    # without a step on one GPU, the fewest GPUs are assumed to need no synchronisation
    alone = min(c for _, _, c, _, _ in points)
    rows = np.array(
        [[s, s * part, c > alone and n == 1, c > alone and n > 1] for s, part, c, n, _ in points],
        float,
    )
    seconds = np.array([t for *_, t in points])
    fixed, per_sample, node, network = nnls(rows / seconds[:, None], np.ones(len(points)))[0]
    return SpeedModel(float(fixed), float(per_sample), float(node), float(network), least)


def _fit_one_part(points: list[tuple[int, int, int, int, float]], least: float) -> SpeedModel:
    """Fits measurements of one part size only: half of the time is assumed to be fixed."""
    fewest = min(c for _, _, c, _, _ in points)
    steps, part, _, _, seconds = next(p for p in points if p[2] == fewest)
    gradient = seconds / steps
    beyond = {True: [0.0], False: [0.0]}
    for s, _, c, n, t in points:
        if c > 1:
            beyond[n > 1].append(max(0.0, t - s * gradient))
    node, network = max(beyond[False]), max(beyond[True])
    return SpeedModel(gradient / 2, gradient / 2 / part, node, network, least)
