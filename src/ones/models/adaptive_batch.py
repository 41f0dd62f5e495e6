"""The batch with the best goodput for each number of GPUs, as Pollux and Sia choose it.

Goodput is samples per second times statistical efficiency. For every size, 50 batches between the
base batch and the largest are tried, in geometric steps; gradients are accumulated where a batch
exceeds the memory of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Gpu
from ones.core.schedule import Allocation, Worker
from ones.core.view import JobView
from ones.models.bounded_table import recent_profile
from ones.models.goodput import noise_scale
from ones.models.step_fit import PolluxStepModel, fit_steps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CANDIDATES = 50
_SLACK = 1e-8  # before rounding up


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Limits of the batch."""

    max_ratio: float = 32.0  # to the base batch
    min_local: int = 1  # samples on each GPU
    two_parts_alone: bool = (
        False  # on one GPU, a batch above the base batch is accumulated in two parts
    )


class BestBatches(NamedTuple):
    """Tables by nodes (row 0: one; row 1: several) and GPUs (column 0 is unused)."""

    goodput: Floats
    batch: Ints
    parts: Ints  # of gradient accumulation


def gpu_limit(view: JobView, rules: BatchRules, gpus: int) -> int:
    """Maximum GPUs of a job: twice as many as it was measured on, within other limits."""
    least = view.job.min_gpus
    if view.description is None:
        return least
    seen = max((c.gpus for c in view.profile), default=0)
    cap = min(max(2 * seen, 1), gpus, _max_batch(view, rules) // rules.min_local)
    if view.max_gpus is not None:
        cap = min(cap, view.max_gpus)
    return max(cap, least)


def allocation(gpus: tuple[Gpu, ...], batch: int, parts: int) -> Allocation:
    """A global batch over these GPUs, as even as possible, accumulated in `parts`."""
    share, rest = divmod(batch, len(gpus))
    workers = (Worker(g, share + (i < rest), parts) for i, g in enumerate(sorted(gpus)))
    return Allocation(tuple(workers))


class GoodputModel:
    """Goodput of one job, from its step times, its gradient noise and its limits."""

    def __init__(self, view: JobView, rules: BatchRules, steps: PolluxStepModel | None) -> None:
        assert view.description is not None
        self._rules, self._steps = rules, steps
        self._base = view.description.base_batch
        self._max = _max_batch(view, rules)
        self._least = view.job.bounded_batch(self._base)
        self._allowed = view.job.max_batch
        self._limit = view.local_limit or self._base
        self._noise = noise_scale(view.progress.gradient_noise, self._base)

    def at(self, gpus: int, nodes: int, batch: int, parts: int) -> float:
        """Goodput of one configuration: effective samples per second."""
        one = np.array([batch])
        return float(self._goodput(np.array([gpus]), np.array([nodes]), one, np.array([parts]))[0])

    def best(self, gpus: int, nodes: int, *, at_most: float = np.inf) -> tuple[int, int, float]:
        """Batch, parts and goodput for one size; `at_most` limits the batch further."""
        sizes, rows = np.array([gpus]), np.array([nodes])
        found = self._search(sizes, rows, min(self._max, max(at_most, self._base)))
        return int(found.batch[0]), int(found.parts[0]), float(found.goodput[0])

    def table(self, most: int) -> BestBatches:
        """The best batches for 1 to `most` GPUs, on one node and on several."""
        width = most + 1
        sizes = np.tile(np.maximum(np.arange(width), 1), 2)
        nodes = np.repeat([1, 2], width)
        found = self._search(sizes, nodes, self._max)
        return BestBatches._make(x.reshape(2, width) for x in found)

    def _search(self, gpus: Ints, nodes: Ints, most: float) -> BestBatches:
        rules = self._rules
        least = np.maximum(self._least, rules.min_local * gpus).astype(np.float64)
        if self._steps is None:  # not measured: linear scaling is assumed
            batch = least.astype(np.int64)
            return BestBatches(gpus.astype(np.float64), batch, self._fewest_parts(gpus, batch))
        ratio = np.maximum(most, least) / least
        steps = np.linspace(0.0, 1.0, _CANDIDATES)[:, None]
        local = least * ratio**steps / gpus
        parts = np.maximum(np.ceil(local / self._limit - _SLACK), 1).astype(np.int64)
        if rules.two_parts_alone:
            beyond = (gpus == 1) & (local > self._base + _SLACK)
            parts = np.where(beyond, np.maximum(parts, 2), parts)
        # with the slack a large part may exceed the limit
        part = np.minimum(np.ceil(local / parts - _SLACK).astype(np.int64), self._limit)
        batch = part * parts * gpus
        if self._allowed is not None:  # rounding up may exceed it
            batch = np.minimum(batch, np.maximum(self._allowed, gpus))
        goodput = self._goodput(*np.broadcast_arrays(gpus, nodes, batch, parts))
        goodput = np.where(part >= min(rules.min_local, self._limit), goodput, 0.0)
        best = np.argmax(goodput, axis=0)
        columns = np.arange(len(gpus))
        return BestBatches(goodput[best, columns], batch[best, columns], parts[best, columns])

    def _goodput(self, gpus: Ints, nodes: Ints, batch: Ints, parts: Ints) -> Floats:
        if self._steps is None:
            return gpus.astype(np.float64)
        part = -(-batch // (gpus * parts))
        speed = batch / self._steps.step_seconds(gpus, nodes, part, parts)
        # statistical efficiency (φ + B0)/(φ + B)
        efficiencies = np.minimum(1.0, (self._noise + self._base) / (self._noise + batch))
        goodput: Floats = speed * efficiencies
        return goodput

    def _fewest_parts(self, gpus: Ints, batch: Ints) -> Ints:
        shares = -(-batch // gpus)
        parts: Ints = -(-shares // self._limit)
        return parts


class GoodputModels:
    """The models of all jobs. A fit is repeated when the profile of its job has changed."""

    def __init__(self, rules: BatchRules) -> None:
        self.rules = rules
        self._fits: dict[str, tuple[object, PolluxStepModel | None]] = {}  # a cache

    def of(self, view: JobView) -> GoodputModel:
        known = self._fits.get(view.id)
        if known is None or known[0] is not view.profile:
            known = self._fits[view.id] = (
                view.profile,
                fit_steps(recent_profile(view.profile)),
            )
        return GoodputModel(view, self.rules, known[1])

    def forget(self, job: str) -> None:
        self._fits.pop(job, None)


def _max_batch(view: JobView, rules: BatchRules) -> int:
    assert view.description is not None
    base = view.description.base_batch
    most = max(base, min(int(base * rules.max_ratio), view.description.dataset_size))
    return min(most, view.job.max_batch or most)
