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
from ones.models.bounded_table import MAX_KINDS, recent_profile, set_bounded
from ones.models.goodput import efficiencies, efficiency
from ones.models.kinds import kind_of, single_job_kind
from ones.models.speed import SpeedModel, fit_speed

#: a step of a job of which nothing is known, by its base batch: half fixed, half by sample
UNKNOWN_STEP_SECONDS = 0.2
#: batches that are looked at: parts of the limit
_LADDER = np.array([1.0, 0.71, 0.5, 0.35, 0.25, 0.12, 0.06, 0.0])
#: and these parts and multiples of what fits into memory at once
_FILLS = np.array([0.5, 1.0, 2.0, 4.0])
#: steps whose mean time counts as much as the model
SURE_STEPS = 20.0
#: configurations remembered of a kind
MOST_OF_A_KIND = 64


#: a batch for each number of GPUs, and how fast that is
Choice = tuple[NDArray[np.int64], NDArray[np.float64]]


class Speeds:
    """Throughput of every job in every size."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[Configuration, StepTime]] = {}
        self._learned = 0  # how often anything was learned
        self._versions: dict[str, int] = {}  # when something was last learned of a kind
        # both only spare work: they follow from what is known
        self._best: dict[JobId, tuple[object, tuple[object, ...], Choice]] = {}
        self._fits: dict[JobId, tuple[object, tuple[object, ...], SpeedModel]] = {}

    def learn(self, view: JobView) -> None:
        """What a job has measured is of use to others of its kind."""
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
        """With so many GPUs and these global batches, packed on nodes of this size.

        A batch of 0 is the script's own. `batches` may have rows, one choice for each size.
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
        """As `samples_per_second`, of one size and batch."""
        asked = _configuration(view, gpus, -(-gpus // per_node), batch)
        modelled = asked.batch / self._model(view).step_seconds(**asked._asdict())
        measured = view.profile.get(asked)
        return modelled if measured is None else _corrected(modelled, asked, measured)

    def slowdown(
        self, view: JobView, gpus: int, batch: int, nodes: int, per_node: int, sharing: int = 1
    ) -> float:
        """Speed when spread over so many nodes, as a part of the speed when packed; `sharing`
        jobs use the busiest network card of those nodes, each a part of it."""
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
        """The batch of the best goodput for each number of GPUs, up to `most`, and that goodput.

        Goodput is samples per second times what a sample is worth at that batch.
        """
        assert view.description is not None
        base = view.description.base_batch
        key = (self._version(view), view.local_limit, view.job.min_batch, per_node, noise,
               sizes.tobytes(), most.tobytes())  # fmt: skip
        known = self._best.get(view.id)
        if known is not None and known[0] is view.profile and known[1] == key:
            return known[2]
        least = np.maximum(np.minimum(max(base, view.job.min_batch or 1), most), sizes)
        full = sizes * (view.local_limit or base)  # what memory holds
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
        """Which numbers of GPUs the job, or another of its kind, has been measured with."""
        pool = self._kinds.get(kind_of(view.job), {})
        known = {c.gpus for profile in (pool, view.profile) for c in profile}
        return np.array([size in known for size in sizes.tolist()], np.bool_)

    def is_measured(self, view: JobView) -> bool:
        """Has it, or another of its kind, been measured at all?"""
        return bool(view.profile or self._kinds.get(kind_of(view.job)))

    def epoch_seconds(self, view: JobView) -> float | None:
        """Of its data with its base batch on one GPU; None: nobody has measured it."""
        if view.description is None or not self.is_measured(view):
            return None
        rate = self.rate(view, 1, view.description.base_batch, 1)
        return view.description.dataset_size / rate

    def largest_tried(self, view: JobView) -> int:
        """GPUs that the job, or another of its kind, has been measured with."""
        pool = self._kinds.get(kind_of(view.job), {})
        return max((c.gpus for profile in (pool, view.profile) for c in profile), default=0)

    def largest_batch(self, view: JobView) -> int:
        """That its kind has been measured with; 0: none."""
        return max((c.batch for c in self._kinds.get(kind_of(view.job), {})), default=0)

    def proven(
        self, view: JobView, sizes: NDArray[np.int64], base: int, noise: float
    ) -> NDArray[np.float64]:
        """The best goodput that its kind was measured with at each size; NaN: at none."""
        best = np.full(len(sizes), np.nan)
        for c, time in self._kinds.get(kind_of(view.job), {}).items():
            rate = c.batch / time.seconds * efficiency(c.batch, base, noise)
            best[sizes == c.gpus] = np.fmax(best[sizes == c.gpus], rate)
        return best

    def _model(self, view: JobView) -> SpeedModel:
        """Fitted anew when the job, or another of its kind, has measured something."""
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
        """What models and rates follow from, beside the job's own measurements."""
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
    """A rate between the modelled and the measured one: few steps are measured by chance."""
    rate = configuration.batch / measured.seconds
    certainty = measured.steps / (measured.steps + SURE_STEPS)
    return float(modelled * (rate / modelled) ** certainty)


def _configuration(view: JobView, gpus: int, nodes: int, batch: int) -> Configuration:
    """How it would run: a batch of 0 is the script's own, parts are as large as memory allows."""
    own = view.base_batch or 1
    batch = batch or max(own, gpus)
    share = -(-batch // gpus)
    return Configuration(gpus, nodes, batch, -(-share // (view.local_limit or own)))
