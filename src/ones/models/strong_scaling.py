"""How a job of a fixed global batch scales: Optimus' speed model, fitted to a whole kind.

    1/f(c) = t0 M/c + t1 + t2 (c-1)/c + t3 [several nodes] + t4 c        nothing negative

The published form has parameter servers; with all-reduce their terms are the ring's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import nnls

from ones.models.speed import LEAST_PART

#: what is assumed of a kind that nobody has run: it scales with the GPUs
UNKNOWN_SAMPLES, UNKNOWN_SAMPLE_SECONDS = 20_000, 1e-3
#: links that nobody has measured yet: bytes a second, and seconds
NODE_SPEED, NODE_DELAY = 60e9, 1e-3
NETWORK_SPEED, NETWORK_DELAY = 9e9, 2e-3
#: sizes at which a prior stands in for measurements, and its weight beside one
PRIOR_SIZES, PRIOR_WEIGHT = (1, 2, 4, 8, 16), 0.1

#: GPUs -> seconds of a step
StepSeconds = Callable[[int], float]


def ring_seconds(parameter_bytes: int, gpus: int, *, spread: bool) -> float:
    """Prior of an all-reduce over GPUs of one node, or of several."""
    if gpus == 1:
        return 0.0
    speed, delay = (NETWORK_SPEED, NETWORK_DELAY) if spread else (NODE_SPEED, NODE_DELAY)
    return 2 * parameter_bytes * (gpus - 1) / gpus / speed + delay


@dataclass(slots=True)
class Kind:
    """What jobs of a kind have taught."""

    dataset_size: int = UNKNOWN_SAMPLES
    parameter_bytes: int = 0
    #: (GPUs, over several nodes, global batch) -> seconds of a step
    steps: dict[tuple[int, bool, int], float] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)  # of those that were completed


def fit_step_seconds(kind: Kind, batch: int, width: int) -> StepSeconds:
    """1/f(c) = t0 M/c + t1 + t2 (c-1)/c + t3 [several nodes] + t4 c, nothing negative.

    While fewer than three sizes were measured, a physical prior fills in. No step is shorter than
    a small part of the shortest one measured.
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
    # relative errors count: a step of a second is not worth more than one of a tenth
    rows = np.array([terms(*p[:3]) for p in points])
    pull = np.array([p[4] / p[3] for p in points])
    theta = nnls(rows * pull[:, None], pull * np.array([p[3] for p in points]))[0].tolist()

    least = LEAST_PART * min(kind.steps.values())

    def step_seconds(gpus: int) -> float:
        shares = terms(gpus, gpus > width, batch)
        return max(least, float(sum(t * x for t, x in zip(theta, shares, strict=True))))

    return step_seconds


def _prior(kind: Kind, measured: tuple[int, bool, int, float]) -> Callable[[int, bool, int], float]:
    """From one measurement: half of the computing is fixed, and a ring has to be gone round."""

    gpus, spread, batch, seconds = measured
    size = kind.parameter_bytes
    computing = max(seconds - ring_seconds(size, gpus, spread=spread), seconds / 10)
    share = batch / gpus

    def prior(gpus: int, spread: bool, batch: int) -> float:
        ring = ring_seconds(size, gpus, spread=spread)
        return computing / 2 * (1 + batch / gpus / share) + ring

    return prior
