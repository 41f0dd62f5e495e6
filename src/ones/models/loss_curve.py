"""Prediction of a training loss: a curve fitted to the losses so far, and where it becomes flat.

    loss(k) = 1 / (slope k + offset) + floor        k: epochs; no parameter is negative

For a given floor, 1/(loss - floor) is linear in k: non-negative least squares. The floor is
searched on a grid, then between the neighbours of the best grid point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

MIN_POINTS = 3
_GRID = 20
#: weights of the oldest, the middle and the newest third of the points
_WEIGHTS = (1.0, 4.0, 16.0)
#: lower bound of a loss, relative to the largest one
_MIN_RATIO = 1e-12
#: neighbours on each side with which a point is compared to detect outliers
_WINDOW = 2


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Parameters of the fit. `at` returns losses in the reported unit."""

    slope: float
    offset: float
    floor: float
    scale: float = 1.0  # the largest loss: the fit is to losses divided by it

    def at(self, epochs: NDArray[np.float64]) -> NDArray[np.float64]:
        falling = np.maximum(self.slope * epochs + self.offset, 1e-12)
        loss: NDArray[np.float64] = self.scale * (1.0 / falling + self.floor)
        return loss

    def flat_at(self, change: float, window: int, at_most: int) -> int | None:
        """First epoch at which the loss has changed by less than `change` over `window` epochs."""
        losses = self.at(np.arange(1.0, at_most + 1))
        flat = np.flatnonzero(np.abs(losses[:-window] - losses[window:]) < change)
        return int(flat[0]) + 1 + window if len(flat) else None


def without_outliers(losses: Sequence[float]) -> list[float]:
    """Replaces each point outside the range of its neighbours by their mean."""
    smooth = list(losses)
    for i in range(1, len(losses) - 1):
        around = [*losses[max(0, i - _WINDOW) : i], *losses[i + 1 : i + 1 + _WINDOW]]
        if not min(around) <= losses[i] <= max(around):
            smooth[i] = fmean(around)
    return smooth


def fit_loss(losses: Sequence[float]) -> LossCurve | None:
    """Fits the losses of epochs 1, 2, ...; None if they are too few or invalid."""
    if len(losses) < MIN_POINTS or not all(np.isfinite(losses)) or min(losses) <= 0:
        return None
    smooth = np.array(without_outliers(losses))
    scale = float(smooth.max())
    seen = np.maximum(smooth / scale, _MIN_RATIO)
    epochs = np.arange(1.0, len(seen) + 1)
    thirds = np.minimum(np.arange(len(seen)) * 3 // len(seen), 2)
    weights = np.array(_WEIGHTS)[thirds]
    rows = np.column_stack([epochs, np.ones(len(seen))])

    def fit(floor: float) -> tuple[float, float, float]:
        """Error, slope and offset."""
        above = seen - floor
        # an error of z = 1/(loss - floor) is one of the loss divided by (loss - floor)^2
        pull = weights * above**2
        slope, offset = nnls(rows * pull[:, None], pull / above)[0]
        fitted = 1.0 / np.maximum(slope * epochs + offset, 1e-12) + floor
        return float(np.sum((weights * (fitted - seen)) ** 2)), float(slope), float(offset)

    highest = float(seen.min()) * (1 - 1e-6)
    grid = np.linspace(0.0, highest, _GRID + 1)[:-1]
    best = int(np.argmin([fit(floor)[0] for floor in grid]))
    between = (grid[max(0, best - 1)], grid[best + 1] if best + 1 < _GRID else highest)
    refined = minimize_scalar(
        lambda floor: fit(floor)[0], bounds=between, method="bounded", options={"xatol": 1e-9}
    )
    floor = float(min((grid[best], refined.x), key=lambda f: fit(f)[0]))
    _, slope, offset = fit(floor)
    return LossCurve(slope, offset, floor, scale)
