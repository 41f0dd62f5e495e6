"""Goodput: throughput times statistical efficiency, and the batch that maximises it."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from ones.core.view import JobView
from ones.models.bounded_table import recent_profile
from ones.models.speed import SpeedModel, fit_speed

#: noise scale of a job that has not reported one, as a multiple of its base batch
ASSUMED_NOISE_RATIO = 4.0
_CANDIDATES = 24


def noise_scale(reported: float | None, base_batch: int) -> float:
    """Gradient noise scale in samples; never negative, as the efficiency would become infinite."""
    return ASSUMED_NOISE_RATIO * base_batch if reported is None else max(reported, 0.0)


def efficiency(batch: int, base_batch: int, noise: float) -> float:
    """Statistical efficiency (φ + B0)/(φ + B); 1 for batches below the base batch."""
    return min(1.0, (noise + base_batch) / (noise + batch))


def efficiencies(
    batches: NDArray[np.int64] | int, base_batch: int, noise: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """`efficiency` of many batches, or under many noise scales, at once."""
    efficiencies: NDArray[np.float64] = np.minimum(1.0, (noise + base_batch) / (noise + batches))
    return efficiencies


class SimpleGoodput:
    """Effective samples per second of one job, estimated from its profile."""

    def __init__(self, view: JobView) -> None:
        assert view.description is not None
        self._base = view.description.base_batch
        self._least = view.job.bounded_batch(self._base)
        self._limit = view.local_limit or self._base
        size = view.description.dataset_size
        self._largest = min(view.job.max_batch or size, size)
        self._noise = noise_scale(view.progress.gradient_noise, self._base)
        self._speed = fit_speed(recent_profile(view.profile)) or SpeedModel(0.5, 0.5 / self._base)

    def at(self, gpus: int, nodes: int, batch: int) -> float:
        parts = ceil(ceil(batch / gpus) / self._limit)
        seconds = self._speed.step_seconds(gpus=gpus, nodes=nodes, batch=batch, micro_steps=parts)
        return batch / seconds * efficiency(batch, self._base, self._noise)

    def best_batch(self, gpus: int, nodes: int, *, at_most: int) -> int:
        """The best batch without accumulation, from the base batch (or one sample per GPU) up."""
        least = max(self._least, gpus)
        most = max(least, min(at_most, gpus * self._limit, self._largest))
        ratio = (most / least) ** (1 / (_CANDIDATES - 1))
        batches: list[int] = sorted({round(least * ratio**i) for i in range(_CANDIDATES)})
        return max(batches, key=lambda batch: self.at(gpus, nodes, batch))
