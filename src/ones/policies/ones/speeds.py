"""X_j(B, c): how fast a job would be, measured where it was measured, modelled elsewhere.

Jobs of a kind teach about one another: a new one starts with what the others have
measured. Without any measurement a job is taken for average.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.job import Configuration, JobId, StepTime
from ones.core.view import JobView
from ones.models.goodput import ASSUMED_NOISE_RATIO
from ones.models.speed import SpeedModel, fit_speed

#: a step of a job of which nothing is known, by its base batch: half fixed, half by sample
UNKNOWN_STEP_SECONDS = 0.2
#: batches that are looked at: the limit, a half of it, a quarter, ...
_LADDER = 6
#: configurations remembered of a kind
MOST_OF_A_KIND = 64


class Speeds:
    """Throughput of every job in every size."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._kinds: dict[str, dict[Configuration, StepTime]] = {}
        self._versions: dict[str, int] = {}  # of what is known of a kind
        # both only spare work: they follow from what is known
        self._rates: dict[JobId, tuple[object, tuple[object, ...], NDArray[np.float64]]] = {}
        self._fits: dict[JobId, tuple[object, tuple[object, ...], SpeedModel]] = {}

    def learn(self, view: JobView) -> None:
        """What a job has measured is of use to others of its kind."""
        pool = self._kinds.setdefault(view.job.kind, {})
        pool.update(view.profile)
        self._versions[view.job.kind] = self._versions.get(view.job.kind, 0) + 1
        while len(pool) > MOST_OF_A_KIND:
            del pool[next(iter(pool))]

    def samples_per_second(
        self, view: JobView, batches: NDArray[np.int64], per_node: int
    ) -> NDArray[np.float64]:
        """For 1, 2, 3, ... GPUs with these global batches, packed on nodes of this size.

        A batch of 0 is the script's own.
        """
        key = (self._version(view), view.local_limit, per_node, batches.tobytes())
        known = self._rates.get(view.id)
        if known is not None and known[0] is view.profile and known[1] == key:
            return known[2]
        rates = self._make_rates(view, batches, per_node)
        self._rates[view.id] = (view.profile, key, rates)
        return rates

    def _make_rates(
        self, view: JobView, batches: NDArray[np.int64], per_node: int
    ) -> NDArray[np.float64]:
        gpus = np.arange(1, len(batches) + 1)
        if self._rule == "per-gpu":
            return self._rate_per_gpu(view) * gpus.astype(np.float64)
        own = view.base_batch or 1
        batches = np.where(batches > 0, batches, np.maximum(own, gpus))
        nodes = -(-gpus // per_node)
        shares = -(-batches // gpus)
        parts = -(-shares // (view.local_limit or own))
        rates: NDArray[np.float64] = batches / self._model(view).all_step_seconds(
            gpus, nodes, batches, parts
        )
        for c, time in view.profile.items():  # what was measured is not to be guessed
            i = c.gpus - 1
            if i < len(batches) and c[1:] == (nodes[i], batches[i], parts[i]):
                rates[i] = c.batch / time.seconds
        return rates

    def best_batches(
        self, view: JobView, most: NDArray[np.int64], per_node: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The batch of the best goodput for 1, 2, ... GPUs, up to `most`, and that goodput.

        Goodput is samples per second times what a sample is worth at that batch.
        """
        assert view.description is not None
        base = view.description.base_batch
        noise = view.progress.gradient_noise
        if noise is None:
            noise = ASSUMED_NOISE_RATIO * base
        best, goodput = most, np.zeros(len(most))
        for i in range(_LADDER):
            batches = np.maximum(most >> i, np.arange(1, len(most) + 1))
            batches = np.where(batches < np.minimum(base, most), np.minimum(base, most), batches)
            worth = np.minimum(1.0, (noise + base) / (noise + batches))
            found = self.samples_per_second(view, batches, per_node) * worth
            better = found > goodput
            best, goodput = np.where(better, batches, best), np.where(better, found, goodput)
        return best, goodput

    def _rate_per_gpu(self, view: JobView) -> float:
        """The paper: the mean of what was measured on each GPU."""
        profile = view.profile or self._kinds.get(view.job.kind, {})
        if not profile:
            return (view.base_batch or 1) / UNKNOWN_STEP_SECONDS
        rates = [c.batch / time.seconds / c.gpus for c, time in profile.items()]
        return sum(rates) / len(rates)

    def _model(self, view: JobView) -> SpeedModel:
        """Fitted anew when the job, or another of its kind, has measured something."""
        version = self._version(view)
        fitted = self._fits.get(view.id)
        if fitted is None or fitted[0] is not view.profile or fitted[1] != version:
            profile = {**self._kinds.get(view.job.kind, {}), **view.profile}
            base = view.base_batch or 1
            fallback = SpeedModel(UNKNOWN_STEP_SECONDS / 2, UNKNOWN_STEP_SECONDS / 2 / base)
            fitted = (view.profile, version, fit_speed(profile) or fallback)
            self._fits[view.id] = fitted
        return fitted[2]

    def _version(self, view: JobView) -> tuple[int, int | None]:
        """What models and rates follow from, beside the job's own measurements."""
        return (self._versions.get(view.job.kind, 0), view.base_batch)

    def forget(self, job: JobId) -> None:
        self._fits.pop(job, None)
        self._rates.pop(job, None)

    def save(self) -> dict[str, Any]:
        return {
            "kinds": {
                kind: [[*configuration, *time] for configuration, time in pool.items()]
                for kind, pool in self._kinds.items()
            }
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._kinds = {
            kind: {
                Configuration(*map(int, row[:4])): StepTime(float(row[4]), int(row[5]))
                for row in rows
            }
            for kind, rows in saved["kinds"].items()
        }
        self._fits, self._rates = {}, {}
