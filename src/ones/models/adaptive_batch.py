"""The batch that serves a job best on each number of GPUs, as Pollux and Sia choose it.

Goodput is samples per second times what a sample is worth at that batch. For every
size, 50 batches between the base batch and the largest are tried, in geometric steps;
what exceeds the memory of a GPU is accumulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.core.cluster import Gpu
from ones.core.schedule import Allocation, Worker
from ones.core.view import JobView
from ones.models.goodput import noise_scale
from ones.models.latest import latest
from ones.models.step_fit import StepModel, fit_steps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CANDIDATES = 50
_SLACK = 1e-8  # before rounding up


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What a batch may be."""

    most_ratio: float = 32.0  # of the base batch
    least_local: int = 1  # samples on each GPU
    two_parts_alone: bool = False  # on one GPU, a batch beyond the base one comes in two parts


class BestBatches(NamedTuple):
    """By nodes (row 0: one; row 1: several) and GPUs (column 0 is not used)."""

    goodput: Floats
    batch: Ints
    parts: Ints  # accumulated in so many


def most_gpus(view: JobView, rules: BatchRules, gpus: int) -> int:
    """How many GPUs a job may have: at most twice as many as it has been measured on."""
    least = view.job.min_gpus
    if view.description is None:
        return least
    seen = max((c.gpus for c in view.profile), default=0)
    cap = min(max(2 * seen, 1), gpus, _most_batch(view, rules) // rules.least_local)
    if view.max_gpus is not None:
        cap = min(cap, view.max_gpus)
    return max(cap, least)


def allocation(gpus: tuple[Gpu, ...], batch: int, parts: int) -> Allocation:
    """A global batch over these GPUs, as evenly as integers allow, in so many parts."""
    share, rest = divmod(batch, len(gpus))
    places = sorted(gpus)
    return Allocation(tuple(Worker(g, share + (i < rest), parts) for i, g in enumerate(places)))


class JobModel:
    """What is known of one job: its step times, its noise, its limits."""

    def __init__(self, view: JobView, rules: BatchRules, steps: StepModel | None) -> None:
        assert view.description is not None
        self._rules, self._steps = rules, steps
        self._base = view.description.base_batch
        self._most = _most_batch(view, rules)
        self._limit = view.local_limit or self._base
        self._noise = noise_scale(view.progress.gradient_noise, self._base)

    def at(self, gpus: int, nodes: int, batch: int, parts: int) -> float:
        """Goodput of one configuration: effective samples per second."""
        one = np.array([batch])
        return float(self._goodput(np.array([gpus]), np.array([nodes]), one, np.array([parts]))[0])

    def best(self, gpus: int, nodes: int, *, at_most: float = np.inf) -> tuple[int, int, float]:
        """Batch, parts and goodput, for one size; `at_most` limits the batch further."""
        sizes, rows = np.array([gpus]), np.array([nodes])
        found = self._search(sizes, rows, min(self._most, max(at_most, self._base)))
        return int(found.batch[0]), int(found.parts[0]), float(found.goodput[0])

    def table(self, most: int) -> BestBatches:
        """For 1 to `most` GPUs, on one node and on several."""
        width = most + 1
        sizes = np.tile(np.maximum(np.arange(width), 1), 2)
        nodes = np.repeat([1, 2], width)
        found = self._search(sizes, nodes, self._most)
        return BestBatches._make(x.reshape(2, width) for x in found)

    def _search(self, gpus: Ints, nodes: Ints, most: float) -> BestBatches:
        rules = self._rules
        least = np.maximum(self._base, rules.least_local * gpus).astype(np.float64)
        if self._steps is None:  # nothing was measured: as many times as fast as there are GPUs
            batch = least.astype(np.int64)
            return BestBatches(gpus.astype(np.float64), batch, self._fewest_parts(gpus, batch))
        ratio = np.maximum(most, least) / least
        steps = np.linspace(0.0, 1.0, _CANDIDATES)[:, None]
        local = least * ratio**steps / gpus
        parts = np.maximum(np.ceil(local / self._limit - _SLACK), 1).astype(np.int64)
        if rules.two_parts_alone:
            beyond = (gpus == 1) & (local > self._base + _SLACK)
            parts = np.where(beyond, np.maximum(parts, 2), parts)
        # within the slack a large part may be above the limit
        part = np.minimum(np.ceil(local / parts - _SLACK).astype(np.int64), self._limit)
        batch = part * parts * gpus
        goodput = self._goodput(*np.broadcast_arrays(gpus, nodes, batch, parts))
        goodput = np.where(part >= min(rules.least_local, self._limit), goodput, 0.0)
        best = np.argmax(goodput, axis=0)
        columns = np.arange(len(gpus))
        return BestBatches(goodput[best, columns], batch[best, columns], parts[best, columns])

    def _goodput(self, gpus: Ints, nodes: Ints, batch: Ints, parts: Ints) -> Floats:
        if self._steps is None:
            return gpus.astype(np.float64)
        part = -(-batch // (gpus * parts))
        speed = batch / self._steps.step_seconds(gpus, nodes, part, parts)
        # statistical efficiency (φ + B0)/(φ + B)
        worth = np.minimum(1.0, (self._noise + self._base) / (self._noise + batch))
        goodput: Floats = speed * worth
        return goodput

    def _fewest_parts(self, gpus: Ints, batch: Ints) -> Ints:
        shares = -(-batch // gpus)
        parts: Ints = -(-shares // self._limit)
        return parts


class JobModels:
    """The models of all jobs; a fit is made anew when its job has measured something."""

    def __init__(self, rules: BatchRules) -> None:
        self.rules = rules
        self._fits: dict[str, tuple[object, StepModel | None]] = {}  # only spares work

    def of(self, view: JobView) -> JobModel:
        known = self._fits.get(view.id)
        if known is None or known[0] is not view.profile:
            known = self._fits[view.id] = (view.profile, fit_steps(latest(view.profile)))
        return JobModel(view, self.rules, known[1])

    def forget(self, job: str) -> None:
        self._fits.pop(job, None)


def _most_batch(view: JobView, rules: BatchRules) -> int:
    assert view.description is not None
    base = view.description.base_batch
    return max(base, min(int(base * rules.most_ratio), view.description.dataset_size))
