"""X_j(B, c): speed of a job at each batch and number of GPUs, measured or modelled.

Jobs of a kind share their measurements. A job without any measurement gets a default step time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.job import Configuration, JobId, StepTime
from ones.core.view import JobView
from ones.models.bounded_table import MAX_KINDS, recent_profile, set_bounded
from ones.models.goodput import efficiencies, efficiency
from ones.models.kinds import kind_of, single_job_kind
from ones.models.speed import SpeedModel, fit_speed

#: step time of an unmeasured job at its base batch: half is fixed, half grows with samples
UNKNOWN_STEP_SECONDS = 0.2
#: candidate batches, as shares of the limit
_LADDER = np.array([1.0, 0.71, 0.5, 0.35, 0.25, 0.12, 0.06, 0.0])
#: and as multiples of the batch that fits into memory
_FILLS = np.array([0.5, 1.0, 2.0, 4.0])
#: measured steps that weigh as much as the model
SURE_STEPS = 20.0
#: configurations remembered of a kind
MOST_OF_A_KIND = 64


#: batch for each number of GPUs, and its goodput
Choice = tuple[NDArray[np.int64], NDArray[np.float64]]


class Speeds:
    """Measurements and models of the throughput of all jobs."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[Configuration, StepTime]] = {}
        self._learned = 0  # number of updates
        self._versions: dict[str, int] = {}  # last update of each kind
        # caches
        self._best: dict[JobId, tuple[object, tuple[object, ...], Choice]] = {}
        self._fits: dict[JobId, tuple[object, tuple[object, ...], SpeedModel]] = {}

    def learn(self, view: JobView) -> None:
        """Adds the measurements of a job to those of its kind."""
        kind, self._learned = kind_of(view.job), self._learned + 1
        pool = self._kinds.get(kind, {})
        pool.update(recent_profile(view.profile))
        while len(pool) > MOST_OF_A_KIND:
            del pool[next(iter(pool))]
        set_bounded(self._kinds, kind, pool, MAX_KINDS)
        set_bounded(self._versions, kind, self._learned, MAX_KINDS)

    def samples_per_second(
        self, view: JobView, sizes: NDArray[np.int64], batches: NDArray[np.int64], per_node: int
    ) -> NDArray[np.float64]:
        """Returns speeds with these numbers of GPUs and global batches, packed on nodes.

        A batch of 0 is that of the script. `batches` may have several rows.
        """
        own = view.base_batch or 1
        batches = np.where(batches > 0, batches, np.maximum(own, sizes))
        nodes = -(-sizes // per_node)
        shares = -(-batches // sizes)
        parts = -(-shares // (view.local_limit or own))
        rates: NDArray[np.float64] = batches / self._model(view).all_step_seconds(
            sizes, nodes, batches, parts
        )
        if view.profile:
            asked = (
                np.broadcast_to(x, rates.shape).ravel() for x in (sizes, nodes, batches, parts)
            )
            for i, c in enumerate(map(Configuration, *(column.tolist() for column in asked))):
                if c in view.profile:
                    rates.flat[i] = _corrected(float(rates.flat[i]), c, view.profile[c])
        return rates

    def rate(self, view: JobView, gpus: int, batch: int, per_node: int) -> float:
        """Returns `samples_per_second` of one size and batch."""
        asked = _configuration(view, gpus, -(-gpus // per_node), batch)
        modelled = asked.batch / self._model(view).step_seconds(**asked._asdict())
        measured = view.profile.get(asked)
        return modelled if measured is None else _corrected(modelled, asked, measured)

    def slowdown(
        self, view: JobView, gpus: int, batch: int, nodes: int, per_node: int, sharing: int = 1
    ) -> float:
        """Returns the speed on `nodes` nodes relative to the packed speed; `sharing` jobs use the
        busiest network card of those nodes."""
        model = self._model(view)
        packed, spread = (
            model.step_seconds(**_configuration(view, gpus, n, batch)._asdict())
            for n in (-(-gpus // per_node), nodes)
        )
        if nodes > 1:
            spread += (sharing - 1) * model.network_seconds
        return packed / spread

    def best_batches(
        self,
        view: JobView,
        sizes: NDArray[np.int64],
        most: NDArray[np.int64],
        per_node: int,
        noise: float,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns the batch with the best goodput for each number of GPUs, and that goodput.

        Goodput is samples per second times the efficiency of the batch.
        """
        assert view.description is not None
        base = view.description.base_batch
        key = (self._version(view), view.local_limit, view.job.min_batch, per_node, noise,
               sizes.tobytes(), most.tobytes())  # fmt: skip
        known = self._best.get(view.id)
        if known is not None and known[0] is view.profile and known[1] == key:
            return known[2]
        least = np.maximum(np.minimum(max(base, view.job.min_batch or 1), most), sizes)
        full = sizes * (view.local_limit or base)  # the batch that fits into memory
        tried = np.vstack([most * _LADDER[:, None], full * _FILLS[:, None]]).astype(np.int64)
        batches = np.clip(tried, least, np.maximum(most, least))
        goodput = self.samples_per_second(view, sizes, batches, per_node)
        goodput = goodput * efficiencies(batches, base, noise)
        best = np.argmax(goodput, axis=0)
        column = np.arange(len(sizes))
        found = (batches[best, column], goodput[best, column])
        self._best[view.id] = (view.profile, key, found)
        return found

    def tried(self, view: JobView, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which sizes were measured for the job or its kind."""
        pool = self._kinds.get(kind_of(view.job), {})
        known = {c.gpus for profile in (pool, view.profile) for c in profile}
        return np.array([size in known for size in sizes.tolist()], np.bool_)

    def is_measured(self, view: JobView) -> bool:
        """Returns whether the job or its kind has measurements."""
        return bool(view.profile or self._kinds.get(kind_of(view.job)))

    def epoch_seconds(self, view: JobView) -> float | None:
        """Returns the time of an epoch at the base batch on one GPU; None: not measured."""
        if view.description is None or not self.is_measured(view):
            return None
        rate = self.rate(view, 1, view.description.base_batch, 1)
        return view.description.dataset_size / rate

    def largest_tried(self, view: JobView) -> int:
        """Returns the largest number of GPUs that was measured for the job or its kind."""
        pool = self._kinds.get(kind_of(view.job), {})
        return max((c.gpus for profile in (pool, view.profile) for c in profile), default=0)

    def largest_batch(self, view: JobView) -> int:
        """Returns the largest batch that was measured for the kind; 0: none."""
        return max((c.batch for c in self._kinds.get(kind_of(view.job), {})), default=0)

    def proven(
        self, view: JobView, sizes: NDArray[np.int64], base: int, noise: float
    ) -> NDArray[np.float64]:
        """Returns the best measured goodput of the kind at each size; NaN: not measured."""
        best = np.full(len(sizes), np.nan)
        for c, time in self._kinds.get(kind_of(view.job), {}).items():
            rate = c.batch / time.seconds * efficiency(c.batch, base, noise)
            best[sizes == c.gpus] = np.fmax(best[sizes == c.gpus], rate)
        return best

    def _model(self, view: JobView) -> SpeedModel:
        """Returns the model of a job, fitted again after measurements of the job or its kind."""
        version = self._version(view)
        fitted = self._fits.get(view.id)
        if fitted is None or fitted[0] is not view.profile or fitted[1] != version:
            profile = {**self._kinds.get(kind_of(view.job), {}), **recent_profile(view.profile)}
            base = view.base_batch or 1
            fallback = SpeedModel(UNKNOWN_STEP_SECONDS / 2, UNKNOWN_STEP_SECONDS / 2 / base)
            fitted = (view.profile, version, fit_speed(profile) or fallback)
            self._fits[view.id] = fitted
        return fitted[2]

    def _version(self, view: JobView) -> tuple[int, int | None]:
        """Returns the version of the inputs of models, except the job's own measurements."""
        return (self._versions.get(kind_of(view.job), 0), view.base_batch)

    def forget(self, job: JobId) -> None:
        self._fits.pop(job, None)
        self._best.pop(job, None)
        self._kinds.pop(single_job_kind(job), None)
        self._versions.pop(single_job_kind(job), None)

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
        self._fits, self._best = {}, {}


def _corrected(modelled: float, configuration: Configuration, measured: StepTime) -> float:
    """Returns a mean of the modelled and the measured rate, weighted by the measured steps."""
    rate = configuration.batch / measured.seconds
    certainty = measured.steps / (measured.steps + SURE_STEPS)
    return float(modelled * (rate / modelled) ** certainty)


def _configuration(view: JobView, gpus: int, nodes: int, batch: int) -> Configuration:
    """Returns the configuration; a batch of 0 is that of the script, micro-batches fill memory."""
    own = view.base_batch or 1
    batch = batch or max(own, gpus)
    share = -(-batch // gpus)
    return Configuration(gpus, nodes, batch, -(-share // (view.local_limit or own)))
