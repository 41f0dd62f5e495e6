"""Optimus' speed model of jobs with a fixed global batch, fitted to all jobs of a kind.

    1/f(c) = t0 M/c + t1 + t2 (c-1)/c + t3 [several nodes] + t4 c        no parameter is negative

The published form has parameter servers; with all-reduce their terms are those of the ring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import nnls

from ones.models.speed import LEAST_PART

#: assumptions for a kind without measurements: linear scaling
UNKNOWN_SAMPLES, UNKNOWN_SAMPLE_SECONDS = 20_000, 1e-3
#: assumed links: bytes per second, and seconds
NODE_SPEED, NODE_DELAY = 60e9, 1e-3
NETWORK_SPEED, NETWORK_DELAY = 9e9, 2e-3
#: sizes at which the prior replaces measurements, and its weight relative to one
PRIOR_SIZES, PRIOR_WEIGHT = (1, 2, 4, 8, 16), 0.1

#: GPUs -> seconds of a step
StepSeconds = Callable[[int], float]


def ring_seconds(parameter_bytes: int, gpus: int, *, spread: bool) -> float:
    """Assumed seconds of an all-reduce over GPUs of one node, or of several (`spread`)."""
    if gpus == 1:
        return 0.0
    speed, delay = (NETWORK_SPEED, NETWORK_DELAY) if spread else (NODE_SPEED, NODE_DELAY)
    return 2 * parameter_bytes * (gpus - 1) / gpus / speed + delay


@dataclass(slots=True)
class KindMeasurements:
    """Measurements of all jobs of a kind."""

    dataset_size: int = UNKNOWN_SAMPLES
    parameter_bytes: int = 0
    #: (GPUs, over several nodes, global batch) -> seconds of a step
    steps: dict[tuple[int, bool, int], float] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)  # of completed jobs


def fit_step_seconds(kind: KindMeasurements, batch: int, width: int) -> StepSeconds:
    """Step seconds by number of GPUs. `width`: GPUs of a node.

    With fewer than three measured sizes a prior adds points. No step is predicted to be shorter
    than a small fraction of the shortest one measured.
    """

    def terms(gpus: int, spread: bool, batch: int) -> list[float]:
        return [batch / gpus, 1.0, (gpus - 1) / gpus, float(spread), float(gpus)]

    points = [(*key, seconds, 1.0) for key, seconds in sorted(kind.steps.items())]
    if not points:
        return lambda gpus: UNKNOWN_SAMPLE_SECONDS * batch / gpus
    if len({gpus for gpus, *_ in points}) < 3:
        prior = _prior(kind, points[0][:4])
        known = {gpus for gpus, *_ in points}
        for gpus in PRIOR_SIZES:
            if gpus not in known:
                spread = gpus > width
                points.append((gpus, spread, batch, prior(gpus, spread, batch), PRIOR_WEIGHT))
    # least squares of relative errors
    rows = np.array([terms(*p[:3]) for p in points])
    pull = np.array([p[4] / p[3] for p in points])
    theta = nnls(rows * pull[:, None], pull * np.array([p[3] for p in points]))[0].tolist()

    least = LEAST_PART * min(kind.steps.values())

    def step_seconds(gpus: int) -> float:
        shares = terms(gpus, gpus > width, batch)
        return max(least, float(sum(t * x for t, x in zip(theta, shares, strict=True))))

    return step_seconds


def _prior(
    kind: KindMeasurements, measured: tuple[int, bool, int, float]
) -> Callable[[int, bool, int], float]:
    """A model from one measurement: half of the computation is fixed; an all-reduce is added."""
    gpus, spread, batch, seconds = measured
    size = kind.parameter_bytes
    computing = max(seconds - ring_seconds(size, gpus, spread=spread), seconds / 10)
    share = batch / gpus

    def prior(gpus: int, spread: bool, batch: int) -> float:
        ring = ring_seconds(size, gpus, spread=spread)
        return computing / 2 * (1 + batch / gpus / share) + ring

    return prior
