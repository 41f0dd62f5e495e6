"""Estimates of Optimus: remaining epochs from losses, step times from measurements of a kind.

A job without a kind is a kind of its own until it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ones.core.events import EpochFinished, Event, JobDescribed, JobEnded, ThroughputMeasured
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.models.kinds import kind_of, single_job_kind
from ones.models.loss_curve import LossCurve, fit_loss
from ones.models.strong_scaling import KindMeasurements

MAX_LOSSES = 200  # kept of a job
MAX_CONFIGURATIONS = 200  # kept of a kind
MAX_ENDED = 50  # completed jobs kept of a kind
UNFITTED_WEIGHT = 0.95  # of the gain of a job without a fitted curve
UNKNOWN_EPOCHS = 20.0  # remaining, when nothing is known of the length of a job


class LossEstimates:
    """A loss counts as flat when it changes by less than `flat_change` over `flat_epochs`. A curve
    that is not flat after `most_epochs` is not used."""

    def __init__(self, *, flat_change: float, flat_epochs: int, most_epochs: int) -> None:
        self._flat = (flat_change, flat_epochs, most_epochs)
        self._losses: dict[JobId, list[float]] = {}
        self._kinds: dict[str, KindMeasurements] = {}
        self._kind_of: dict[JobId, str] = {}
        self._curves: dict[JobId, LossCurve | None] = {}  # fitted since the last epoch

    def observe(self, event: Event, view: View) -> None:
        match event:
            case EpochFinished() if event.loss is not None:
                self._curves.pop(event.job, None)
                losses = self._losses.setdefault(event.job, [])
                losses.append(event.loss)
                del losses[:-MAX_LOSSES]
            case JobDescribed():
                kind = self._kind(view.job(event.job))
                kind.dataset_size = event.dataset_size
                kind.parameter_bytes = event.parameter_bytes
            case ThroughputMeasured():
                c = event.configuration
                steps = self._kind(view.job(event.job)).steps
                key = (c.gpus, c.nodes > 1, c.batch)
                set_bounded(steps, key, event.step_seconds, MAX_CONFIGURATIONS)
            case JobEnded():
                self._forget(event)
            case _:
                pass

    def _forget(self, event: JobEnded) -> None:
        losses = self._losses.pop(event.job, [])
        self._curves.pop(event.job, None)
        name = self._kind_of.pop(event.job, "")
        kind = self._kinds.get(name)
        if kind is None:
            return
        if name == single_job_kind(event.job):  # a kind of one job
            del self._kinds[name]
        elif event.reason.completed and losses:
            kind.epochs.append(len(losses))
            del kind.epochs[:-MAX_ENDED]

    def _kind(self, job: JobView) -> KindMeasurements:
        name = self._kind_of.setdefault(job.id, kind_of(job.job))
        kind = self._kinds.get(name) or KindMeasurements()
        set_bounded(self._kinds, name, kind, MAX_KINDS + len(self._kind_of))
        return kind

    def measurements(self, job: JobView) -> KindMeasurements:
        """Measurements of all jobs of the same kind."""
        return self._kinds.get(kind_of(job.job), KindMeasurements())

    def epochs_left(self, job: JobView) -> tuple[float, float]:
        """Remaining epochs, and the weight of this estimate."""
        if job.id not in self._curves:
            self._curves[job.id] = fit_loss(self._losses.get(job.id, ()))
        curve = self._curves[job.id]
        if curve is not None:
            flat = curve.flat_at(*self._flat)
            if flat is not None:
                return max(1.0, flat - job.epochs), 1.0
        known = self.epochs_left_of_kind(job)
        return UNKNOWN_EPOCHS if known is None else known, UNFITTED_WEIGHT

    def epochs_left_of_kind(self, job: JobView) -> float | None:
        """Remaining epochs by the mean of completed jobs of the kind; None without any."""
        epochs = self.measurements(job).epochs
        return max(1.0, fmean(epochs) - job.epochs) if epochs else None

    def losses(self, job: JobId) -> list[float]:
        """The losses of the job's last epochs, oldest first."""
        return self._losses.get(job, [])

    def save(self) -> dict[str, Any]:
        return {
            "losses": {job: list(losses) for job, losses in self._losses.items()},
            "kinds": {
                name: [
                    kind.dataset_size,
                    kind.parameter_bytes,
                    [[*key, seconds] for key, seconds in kind.steps.items()],
                    list(kind.epochs),
                ]
                for name, kind in self._kinds.items()
            },
            "kind_of": dict(self._kind_of),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._curves = {}
        self._losses = {JobId(job): list(losses) for job, losses in saved["losses"].items()}
        self._kinds = {
            name: KindMeasurements(
                size, parameters, {(c, far, b): t for c, far, b, t in steps}, list(epochs)
            )
            for name, (size, parameters, steps, epochs) in saved["kinds"].items()
        }
        self._kind_of = {JobId(job): kind for job, kind in saved["kind_of"].items()}
