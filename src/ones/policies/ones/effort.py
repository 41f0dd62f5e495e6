"""Work in effective samples: what each job has done, counted by what its batches were worth.

A sample of a batch far above the noise scale teaches less (`models.goodput.efficiency`).
Counted so, the length of a job does not depend on how it was run, and what jobs of a kind
have in common (data, batch, noise) is remembered for those that have not joined yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from ones.core.job import Description, JobId
from ones.core.view import JobView
from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.models.goodput import efficiency, noise_scale
from ones.models.kinds import kind_of, single_job_kind


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the last job of a kind that joined."""

    dataset_size: int
    base_batch: int
    local_limit: int | None = None  # samples that fitted one GPU at once


class Effort:
    """Same reports, same counts; `raw` counts every sample as one (the paper)."""

    def __init__(self, *, raw: bool) -> None:
        self._raw = raw
        self._done: dict[JobId, float] = {}
        self._reported: dict[JobId, int] = {}  # raw samples that `_done` covers
        self._noise: dict[str, float] = {}  # by kind
        self._shapes: dict[str, Shape] = {}  # by kind

    def joined(self, view: JobView) -> None:
        if view.description is not None:
            set_bounded(
                self._shapes, kind_of(view.job), _shape_of(view, view.description), MAX_KINDS
            )

    def learn(self, view: JobView) -> None:
        """It has reported samples, and perhaps its noise scale."""
        noise = view.progress.gradient_noise
        if noise is not None:
            set_bounded(self._noise, kind_of(view.job), noise, MAX_KINDS)
        more = view.progress.samples - self._reported.get(view.id, 0)
        self._reported[view.id] = view.progress.samples
        done = view.progress.effective_samples  # the engine may know better than an estimate
        if done is None:
            done = max(0.0, self._done.get(view.id, 0.0) + more * self.worth(view))
        self._done[view.id] = done

    def worth(self, view: JobView) -> float:
        """Of a sample, with the batch that the job has now."""
        if self._raw or view.description is None or view.held is None or not view.held.batch:
            return 1.0
        return efficiency(view.held.batch, view.description.base_batch, self.noise(view))

    def done(self, view: JobView) -> float:
        if self._raw:
            return float(view.progress.samples)
        return self._done.get(view.id, 0.0)

    def done_by(self, job: JobId) -> float | None:
        """At its end, when there is no view of it any more; None: not told."""
        return self._reported.get(job) if self._raw else self._done.get(job)

    def noise(self, view: JobView) -> float:
        """As reported; before that, by its kind; or a usual multiple of its base batch."""
        own = view.progress.gradient_noise
        if own is None:
            own = self._noise.get(kind_of(view.job))
        return noise_scale(own, view.base_batch or 1)

    def shape(self, view: JobView) -> Shape | None:
        """Its own, or what its kind lets expect."""
        if view.description is not None:
            return _shape_of(view, view.description)
        return self._shapes.get(kind_of(view.job))

    def like_its_kind(self, view: JobView) -> JobView:
        """As if it had joined, where another of its kind has: what is to be expected of it."""
        shape = self._shapes.get(kind_of(view.job))
        if view.description is not None or shape is None:
            return view
        description = Description(dataset_size=shape.dataset_size, base_batch=shape.base_batch)
        return replace(view, description=description, local_limit=shape.local_limit)

    def forget(self, job: JobId) -> None:
        self._done.pop(job, None)
        self._reported.pop(job, None)
        self._noise.pop(single_job_kind(job), None)
        self._shapes.pop(single_job_kind(job), None)

    def save(self) -> dict[str, Any]:
        return {
            "done": dict(self._done),
            "reported": dict(self._reported),
            "noise": dict(self._noise),
            "shapes": {kind: list(astuple(shape)) for kind, shape in self._shapes.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._done = {JobId(job): float(n) for job, n in saved["done"].items()}
        self._reported = {JobId(job): int(n) for job, n in saved["reported"].items()}
        self._noise = {kind: float(n) for kind, n in saved["noise"].items()}
        self._shapes = {kind: Shape(*row) for kind, row in saved["shapes"].items()}


def _shape_of(view: JobView, description: Description) -> Shape:
    return Shape(description.dataset_size, description.base_batch, view.local_limit)
