"""Pollux's step time model of seven parameters (OSDI'21, Eq. 8 to 11), fitted to measurements.

    T_grad = a_c + b_c b                          forward and backward pass of one part
    T_sync = 0 | a_r + b_r (c-2) | a_n + b_n (c-2)     one GPU | one node | several nodes
    T_step = s T_grad + (T_grad^γ + T_sync^γ)^(1/γ)    s parts before the last one

Costs that were not measured are assumed to be zero, so that such configurations are tried: that is
how Pollux explores. Unlike there, the time of synchronisation alone is not measured: T_grad is
known from steps on one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from ones.core.job import Configuration, StepTime

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: minimum cost over a network, as a multiple of that inside a node
NETWORK_FACTOR = 1.1
#: value of an unknown parameter
NEGLIGIBLE = 1e-8
_OVERLAP = (1.0, 10.0)
_STARTS = (1.001, 3.0)  # of the overlap: the fit has several local minima
_TIP = 1e-3  # errors below count as zero


class PolluxStepModel(NamedTuple):
    """Seconds, except the exponent."""

    fixed: float  # a_c
    per_sample: float  # b_c
    network: float = NEGLIGIBLE  # a_n
    network_per_gpu: float = NEGLIGIBLE  # b_n
    node: float = NEGLIGIBLE  # a_r
    node_per_gpu: float = NEGLIGIBLE  # b_r
    overlap: float = 1.0  # γ: 1: none, 10: nearly all

    def step_seconds(self, gpus: Ints, nodes: Ints, part: Ints, parts: Ints) -> Floats:
        """Step times of many configurations: `parts` micro-batches of `part` samples."""
        gradient = self.fixed + self.per_sample * part
        beyond = np.maximum(gpus - 2, 0)
        sync = np.where(
            nodes > 1,
            self.network + self.network_per_gpu * beyond,
            self.node + self.node_per_gpu * beyond,
        )
        sync = np.where(gpus > 1, sync, 0.0)
        larger = np.maximum(gradient, sync)
        both = (gradient / larger) ** self.overlap + (sync / larger) ** self.overlap
        seconds: Floats = (parts - 1) * gradient + larger * both ** (1 / self.overlap)
        return seconds


class Measurements(NamedTuple):
    """Measured configurations, as columns."""

    gpus: Ints
    nodes: Ints
    part: Ints
    parts: Ints
    seconds: Floats


def measurements_of(profile: Mapping[Configuration, StepTime]) -> Measurements:
    rows = sorted(profile.items())
    gpus, nodes, batch, parts = np.array([tuple(c) for c, _ in rows], np.int64).T
    seconds = np.array([time.seconds for _, time in rows])
    return Measurements(gpus, nodes, -(-batch // (gpus * parts)), parts, seconds)


def fit_steps(profile: Mapping[Configuration, StepTime]) -> PolluxStepModel | None:
    """Fits the model to measured step times; None without measurements."""
    if not profile:
        return None
    points = measurements_of(profile)
    start, low, high = _bounds(points)
    best, least = start, np.inf
    for overlap in _STARTS:
        start[6] = overlap
        found = minimize(
            _error,
            np.clip(start, low, high),
            args=(points,),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(low, high, strict=True)),
            options={"maxiter": 100, "ftol": 1e-7},
        )
        if found.fun < least:
            best, least = found.x, found.fun
        if not np.any(points.gpus > 1):
            break  # no synchronisation was measured
    model = PolluxStepModel._make([*np.exp(best[:6]).tolist(), float(best[6])])
    if not np.any(points.nodes > 1):
        model = model._replace(
            network=max(model.network, NETWORK_FACTOR * model.node),
            network_per_gpu=max(model.network_per_gpu, NETWORK_FACTOR * model.node_per_gpu),
        )
    return model


def _bounds(points: Measurements) -> tuple[Floats, Floats, Floats]:
    """Start, lower and upper bounds, as logarithms; unknown parameters are fixed."""
    alone = points.gpus == 1
    seen = alone if np.any(alone) else points.gpus == points.gpus.min()
    gradient = float(np.mean(points.seconds[seen] / points.parts[seen]))
    part = float(np.mean(points.part[seen]))
    sync = float(np.mean(points.seconds)) / 4
    start = np.log([gradient / 2, gradient / 2 / part, sync, sync / 10, sync, sync / 10, 1.0])
    low = np.full(7, np.log(NEGLIGIBLE))
    high = np.full(7, np.log(1e4))
    low[6], high[6] = _OVERLAP
    many = np.any(points.gpus > 2)
    held = [
        (len(set(points.part.tolist())) == 1, 0, start[0]),
        (not np.any(points.nodes > 1), 2, low[2]),
        (not np.any(points.nodes > 1) or not many, 3, low[3]),
        (not np.any((points.nodes == 1) & ~alone), 4, low[4]),
        (not np.any((points.nodes == 1) & ~alone) or not many, 5, low[5]),
    ]
    for unknown, i, value in held:
        if unknown:
            low[i] = high[i] = value
    return start, low, high


def _error(x: Floats, points: Measurements) -> tuple[float, Floats]:
    """Root mean squares of log errors of T_step and of T_grad, and Pollux's two penalties."""
    a_c, b_c, a_n, b_n, a_r, b_r = np.exp(x[:6])
    power = x[6]
    several, together = points.nodes > 1, points.gpus > 1
    beyond = np.maximum(points.gpus - 2, 0)
    gradient = a_c + b_c * points.part
    sync = np.where(several, a_n + b_n * beyond, a_r + b_r * beyond)
    sync = np.where(together, sync, NEGLIGIBLE * gradient)
    larger = np.maximum(gradient, sync)
    g, s = gradient / larger, sync / larger
    both = g**power + s**power
    last = larger * both ** (1 / power)
    step = (points.parts - 1) * gradient + last
    # derivatives of the step
    by_gradient = (points.parts - 1) + (gradient / last) ** (power - 1)
    by_sync = np.where(together, (sync / last) ** (power - 1), 0.0)
    by_power = last * (
        (g**power * np.log(g) + s**power * np.log(s)) / both / power - np.log(both) / power**2
    )
    slopes = np.stack(
        [
            by_gradient * a_c,
            by_gradient * b_c * points.part,
            by_sync * several * a_n,
            by_sync * several * b_n * beyond,
            by_sync * ~several * a_r,
            by_sync * ~several * b_r * beyond,
            by_power,
        ]
    )
    total, slope = _rms(np.log(step) - np.log(points.seconds), slopes / step)
    alone = ~together
    if np.any(alone):
        off = np.log(gradient[alone]) - np.log(points.seconds[alone] / points.parts[alone])
        by = np.zeros((7, int(alone.sum())))
        by[0], by[1] = a_c / gradient[alone], b_c * points.part[alone] / gradient[alone]
        more, more_slope = _rms(off, by)
        total, slope = total + more, slope + more_slope
    total += 1e-3 * (power - 1) ** 2 + 1e-2 * ((b_n / a_n) ** 2 + (b_r / a_r) ** 2)
    slope[6] += 2e-3 * (power - 1)
    for i, ratio in ((2, b_n / a_n), (4, b_r / a_r)):
        slope[i] -= 2e-2 * ratio**2
        slope[i + 1] += 2e-2 * ratio**2
    return float(total), slope


def _rms(errors: Floats, slopes: Floats) -> tuple[float, Floats]:
    """Root mean square, smoothed at zero, where it has no derivative."""
    value = float(np.sqrt(np.mean(errors**2) + _TIP**2))
    return value, slopes @ errors / (len(errors) * value)
