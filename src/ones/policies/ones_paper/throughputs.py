"""Parts `throughput`: X_j with each number of GPUs (Eq. 5).

`per-gpu` is the mean of the rates measured on each GPU, as the text says; `fitted` is a model of
the step time, which knows that workers wait for each other; `interpolated` is the prototype's.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.job import Configuration, JobId, StepTime
from ones.core.view import JobView
from ones.models.bounded_table import MAX_KINDS, recent_profile, set_bounded
from ones.models.kinds import kind_of, single_job_kind
from ones.models.speed import SpeedModel, fit_speed
from ones.policies.ones_paper.genome import Floats

#: seconds of a step with the base batch, of a job of which nothing is measured
UNKNOWN_STEP = 0.2
#: configurations kept of a kind
KIND_CONFIGURATIONS = 64

Profile = Mapping[Configuration, StepTime]


class PerGpu:
    """X_j(c) = c times the mean rate per GPU. A job without measurements has those of its kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[Configuration, StepTime]] = {}
        self._versions: dict[str, int] = {}
        self._learned = 0

    def measured(self, job: JobView) -> None:
        kind = kind_of(job.job)
        pool = dict(self._kinds.get(kind, {}))
        pool.update(recent_profile(job.profile))
        while len(pool) > KIND_CONFIGURATIONS:
            del pool[next(iter(pool))]
        self._learned += 1
        set_bounded(self._kinds, kind, pool, MAX_KINDS)
        set_bounded(self._versions, kind, self._learned, MAX_KINDS)

    def finished_epoch(self, job: JobView) -> None:
        pass

    def forget(self, job: JobId) -> None:
        self._kinds.pop(single_job_kind(job), None)
        self._versions.pop(single_job_kind(job), None)

    def profile(self, job: JobView) -> Profile:
        return recent_profile(job.profile) or self._kinds.get(kind_of(job.job), {})

    def rates(self, job: JobView, batches: NDArray[np.int64], per_node: int) -> Floats:
        """Samples per second with 1, 2, ... GPUs and these batches."""
        profile = self.profile(job)
        rates = [c.batch / time.seconds / c.gpus for c, time in profile.items()]
        rate = sum(rates) / len(rates) if rates else (job.base_batch or 1) / UNKNOWN_STEP
        rates_by_size: Floats = rate * np.arange(1.0, len(batches) + 1)
        return rates_by_size

    def save(self) -> dict[str, Any]:
        return {
            kind: [[*configuration, *time] for configuration, time in pool.items()]
            for kind, pool in self._kinds.items()
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._kinds = {
            kind: {
                Configuration(*map(int, row[:4])): StepTime(float(row[4]), int(row[5]))
                for row in rows
            }
            for kind, rows in saved.items()
        }
        self._versions = {}


class Fitted(PerGpu):
    """X_j(c) by a step time model, fitted to the job's measurements and those of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self._fits: dict[JobId, tuple[Profile, int, SpeedModel]] = {}  # a cache

    def forget(self, job: JobId) -> None:
        super().forget(job)
        self._fits.pop(job, None)

    def rates(self, job: JobView, batches: NDArray[np.int64], per_node: int) -> Floats:
        gpus = np.arange(1, len(batches) + 1)
        base = job.base_batch or 1
        batches = np.where(batches > 0, batches, np.maximum(base, gpus))
        micro_steps = -(-batches // (gpus * (job.local_limit or base)))
        nodes = -(-gpus // per_node)
        seconds = self._model(job).all_step_seconds(gpus, nodes, batches, micro_steps)
        rates: Floats = batches / seconds
        return rates

    def _model(self, job: JobView) -> SpeedModel:
        version = self._versions.get(kind_of(job.job), 0)
        known = self._fits.get(job.id)
        if known is None or known[0] is not job.profile or known[1] != version:
            profile = {**self._kinds.get(kind_of(job.job), {}), **recent_profile(job.profile)}
            half = UNKNOWN_STEP / 2
            model = fit_speed(profile) or SpeedModel(half, half / (job.base_batch or 1))
            known = self._fits[job.id] = (job.profile, version, model)
        return known[2]


class Interpolated(PerGpu):
    """X_j(n): mean of the last 5 epochs at n; else linear between measured sizes and (0, 0).

    Beyond the largest measured size the last segment goes on. Nothing is shared between jobs.
    """

    EPOCHS = 5
    LEAST = 1e-3  # of the rate at the largest size: the last segment may fall below 0

    def __init__(self) -> None:
        super().__init__()
        self._rates: dict[JobId, dict[int, list[float]]] = {}

    def measured(self, job: JobView) -> None:
        pass

    def finished_epoch(self, job: JobView) -> None:
        step = job.progress.step_seconds
        if job.held is not None and job.held.batch and step and 0 < step < inf:
            rates = self._rates.setdefault(job.id, {}).setdefault(job.held.n_gpus, [])
            rates.append(job.held.batch / step)
            del rates[: -self.EPOCHS]

    def forget(self, job: JobId) -> None:
        self._rates.pop(job, None)

    def rates(self, job: JobView, batches: NDArray[np.int64], per_node: int) -> Floats:
        gpus = np.arange(1, len(batches) + 1)
        known = self._rates.get(job.id)
        if not known:
            unknown: Floats = gpus.astype(float) * ((job.base_batch or 1) / UNKNOWN_STEP)
            return unknown
        points = {0: 0.0} | {n: sum(rates) / len(rates) for n, rates in sorted(known.items())}
        sizes, values = list(points), list(points.values())
        found = np.interp(gpus, sizes, values)
        slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
        found = np.where(gpus > sizes[-1], values[-1] + slope * (gpus - sizes[-1]), found)
        return np.maximum(found, self.LEAST * values[-1])

    def save(self) -> dict[str, Any]:
        return {
            job: [[n, *rates] for n, rates in sizes.items()] for job, sizes in self._rates.items()
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rates = {
            JobId(job): {int(row[0]): [float(rate) for rate in row[1:]] for row in rows}
            for job, rows in saved.items()
        }


THROUGHPUTS = {"per-gpu": PerGpu, "fitted": Fitted, "interpolated": Interpolated}
