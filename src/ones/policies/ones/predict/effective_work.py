"""Effective samples that each job has processed, and the properties that jobs of a kind share.

A sample of a batch far above the noise scale counts for less (`models.goodput.efficiency`), so the
length of a job does not depend on its batches. Data size, base batch and noise of a kind are
remembered for jobs that have not joined yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ones.core.job import Description, JobId
from ones.core.view import JobView
from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.models.goodput import noise_scale
from ones.models.kinds import kind_of, single_job_kind
from ones.policies.ones.predict.memory import Remembers
from ones.policies.ones.predict.noise_calibration import (
    FACTORS,
    Floats,
    NoiseCalibration,
    efficiencies_of,
)

#: largest noise scale that counts, in samples; a multiple of it must be finite
MAX_NOISE = 1e15


@dataclass(frozen=True, slots=True)
class Shape:
    """Data size and batches of the last job of a kind that joined."""

    dataset_size: int
    base_batch: int
    local_limit: int | None = None  # largest batch that fits one GPU


class EffectiveWork(Remembers):
    """Counts effective samples of jobs; equal reports give equal counts."""

    memory: ClassVar[Mapping[str, Any]] = {
        "_done": dict[JobId, np.ndarray],
        "_counted_samples": dict[JobId, int],
        "_noise": dict[str, float],
        "_shapes": dict[str, Shape],
        "_calibration": None,
    }

    def __init__(self) -> None:
        self._done: dict[JobId, Floats] = {}  # effective samples under each noise factor
        self._calibration = NoiseCalibration()
        self._counted_samples: dict[JobId, int] = {}  # raw samples that `_done` contains
        self._noise: dict[str, float] = {}  # last reported noise scale, by kind
        self._shapes: dict[str, Shape] = {}  # by kind

    def joined(self, view: JobView) -> None:
        if view.description is not None:
            set_bounded(
                self._shapes, kind_of(view.job), _shape_of(view, view.description), MAX_KINDS
            )

    def learn(self, view: JobView) -> None:
        """Adds the samples and the noise scale that a job has reported."""
        noise = view.progress.gradient_noise
        if noise is not None:
            set_bounded(self._noise, kind_of(view.job), noise, MAX_KINDS)
        more = view.progress.samples - self._counted_samples.get(view.id, 0)
        self._counted_samples[view.id] = view.progress.samples
        if view.progress.effective_samples is not None:  # counted by the job itself
            self._done[view.id] = np.full_like(FACTORS, view.progress.effective_samples)
        else:
            before = self._done.get(view.id, np.zeros_like(FACTORS))
            self._done[view.id] = np.maximum(before + more * self._efficiencies(view), 0.0)

    def _efficiencies(self, view: JobView) -> Floats:
        """Returns the efficiency of the job's present batch under each noise factor."""
        if view.description is None or view.held is None or not view.held.batch:
            return np.ones_like(FACTORS)
        noise = self._reported_noise(view)
        return efficiencies_of(view.held.batch, view.description.base_batch, noise)

    def efficiency_of(self, view: JobView) -> float:
        """Returns the efficiency of the job's present batch."""
        return float(self._efficiencies(view)[self._calibration.index])

    def done(self, view: JobView) -> float:
        return self.done_by(view.id) or 0.0

    def done_by(self, job: JobId) -> float | None:
        """Returns the effective samples of a job, which may have ended; None: no report."""
        done = self._done.get(job)
        return None if done is None else float(done[self._calibration.index])

    def completed(self, job: JobId, kind: str) -> None:
        if job in self._done:
            self._calibration.completed(kind, self._done[job])

    def noise(self, view: JobView) -> float:
        """Returns the gradient noise scale, corrected by the lengths of completed jobs."""
        return self._calibration.factor * self._reported_noise(view)

    def _reported_noise(self, view: JobView) -> float:
        """Returns the reported noise scale; without one, that of the kind or a multiple of the base
        batch."""
        own = view.progress.gradient_noise
        if own is None:
            own = self._noise.get(kind_of(view.job))
        return min(noise_scale(own, view.base_batch or 1), MAX_NOISE)

    def shape(self, view: JobView) -> Shape | None:
        """Returns the shape of a job; before it has joined, that of its kind."""
        if view.description is not None:
            return _shape_of(view, view.description)
        return self._shapes.get(kind_of(view.job))

    def as_if_joined(self, view: JobView) -> JobView:
        """Returns the view of a job with the shape of its kind if the job has not joined."""
        shape = self._shapes.get(kind_of(view.job))
        if view.description is not None or shape is None:
            return view
        description = Description(dataset_size=shape.dataset_size, base_batch=shape.base_batch)
        return replace(view, description=description, local_limit=shape.local_limit)

    def forget(self, job: JobId) -> None:
        self._done.pop(job, None)
        self._counted_samples.pop(job, None)
        self._noise.pop(single_job_kind(job), None)
        self._shapes.pop(single_job_kind(job), None)


def _shape_of(view: JobView, description: Description) -> Shape:
    return Shape(description.dataset_size, description.base_batch, view.local_limit)
