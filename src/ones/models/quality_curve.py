"""SLAQ's prediction of a training loss: two curves, recent losses count most.

    sublinear:    loss(k) = 1 / (a k^2 + b k + c) + floor      a, b, c not negative
    exponential:  loss(k) = exp(slope k + offset) + floor      slope not positive

k counts epochs. For a given floor both are linear after a transformation; floors are on a grid.
The curve with the smaller weighted error is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

#: weight of a loss relative to that of the next epoch (assumed; the publication: "exponentially")
DECAY = 0.9
MIN_POINTS = 3
MAX_POINTS = 50  # older losses weigh less than DECAY ** 50 = 0.005
_GRID = 20
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QualityCurve:
    """`powers`: a, b, c of the sublinear curve; of the exponential one: 0, slope, offset."""

    sublinear: bool
    powers: tuple[float, float, float]
    floor: float
    error: float  # weighted, of losses divided by the largest
    scale: float = 1.0

    def at(self, epochs: float) -> float:
        """The loss after this many epochs."""
        a, b, c = self.powers
        value = a * epochs**2 + b * epochs + c
        falling = 1.0 / max(value, 1e-12) if self.sublinear else exp(min(value, 50.0))
        return self.scale * (falling + self.floor)


def fit_quality(losses: Sequence[float], *, first_epoch: int = 1) -> QualityCurve | None:
    """Fits losses of consecutive epochs; None if they are too few or invalid."""
    if len(losses) < MIN_POINTS or not all(np.isfinite(losses)) or min(losses) <= 0:
        return None
    first_epoch += max(0, len(losses) - MAX_POINTS)
    points = np.array(losses[-MAX_POINTS:], dtype=float)
    scale = float(points.max())
    points = np.maximum(points / scale, 1e-12)
    epochs = np.arange(first_epoch, first_epoch + len(points), dtype=float)
    weights: _Floats = np.power(DECAY, np.arange(len(points) - 1.0, -1.0, -1.0))
    best: QualityCurve | None = None
    for floor in np.linspace(0.0, float(points.min()) * (1 - 1e-6), _GRID + 1)[:-1].tolist():
        for fit in (_sublinear, _exponential):
            curve = fit(points, epochs, weights, floor)
            if best is None or curve.error < best.error:
                best = curve
    assert best is not None
    return QualityCurve(best.sublinear, best.powers, best.floor, best.error, scale)


def _sublinear(points: _Floats, epochs: _Floats, weights: _Floats, floor: float) -> QualityCurve:
    above = points - floor
    pull = weights * above**2  # an error of 1/above is one of the loss divided by above^2
    rows = np.column_stack([epochs**2, epochs, np.ones_like(epochs)])
    a, b, c = nnls(rows * pull[:, None], pull / above)[0].tolist()
    fitted = 1.0 / np.maximum(rows @ np.array([a, b, c]), 1e-12) + floor
    return QualityCurve(True, (a, b, c), floor, float(np.sum((weights * (fitted - points)) ** 2)))


def _exponential(points: _Floats, epochs: _Floats, weights: _Floats, floor: float) -> QualityCurve:
    above = points - floor
    pull = weights * above
    logs = np.log(above)
    # a falling line: the slope is fitted with its sign reversed, the offset with both signs
    rows = np.column_stack([-epochs, np.ones_like(epochs), -np.ones_like(epochs)])
    fall, up, down = nnls(rows * pull[:, None], pull * logs)[0].tolist()
    fitted = np.exp(np.minimum(-fall * epochs + up - down, 50.0)) + floor
    error = float(np.sum((weights * (fitted - points)) ** 2))
    return QualityCurve(False, (0.0, -fall, up - down), floor, error)
