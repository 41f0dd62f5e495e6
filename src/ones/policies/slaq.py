"""SLAQ (SoCC'17): in rounds, each GPU goes where it lowers the normalised loss the most.

The loss of a job is extrapolated from its last epochs, and divided by the largest change that the
job has shown, so that jobs can be compared. Young jobs gain most; nearly converged jobs keep their
minimum. The aim is quality, not completion time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from ones.core import events as ev
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.view import JobView, View
from ones.models.marginal_gain import GainCandidate, marginal_gains
from ones.models.quality_curve import QualityCurve, fit_quality
from ones.models.settings import check_settings, setting
from ones.models.sizing_rounds import SizingRounds, Take

#: normalised gain of a GPU for a job without a curve: as much as any job can gain
UNKNOWN_GAIN = 1.0


@dataclass(frozen=True, slots=True)
class QualityCandidate(GainCandidate):
    """A job with the normalised loss that it is predicted to have after a round."""

    curve: QualityCurve | None = None  # None: too few losses
    largest_change: float = 1.0  # of the loss from one epoch to the next
    epochs: float = 0.0  # done
    steps_per_epoch: int = 1
    round_seconds: float = 60.0

    def drop(self, gpus: int) -> float:
        """Predicted fall of the normalised loss in one round on this number of GPUs."""
        assert self.curve is not None
        seconds = self.step_seconds(gpus) * self.steps_per_epoch
        later = self.epochs + self.round_seconds / max(seconds, 1e-9)
        return (self.curve.at(self.epochs) - self.curve.at(later)) / self.largest_change

    def gain(self, now: int, then: int) -> float:
        """Normalised loss per additional GPU."""
        if self.curve is None:
            return UNKNOWN_GAIN
        return (self.drop(then) - self.drop(now)) / (then - now)


class Slaq(SizingRounds):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        interval: float = setting(60.0, "seconds between two rounds", least=1.0)

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        super().__init__(self._settings.interval)
        # of each job: losses so far, the last one, the largest change; and its curve, as needed
        self._seen: dict[JobId, tuple[int, float, float]] = {}
        self._curves: dict[JobId, QualityCurve | None] = {}

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        super().observe(event, view)
        if isinstance(event, ev.EpochFinished) and event.loss is not None:
            first = event.loss if event.first_loss is None else event.first_loss
            count, before, largest = self._seen.get(event.job, (0, first, 0.0))
            largest = max(largest, abs(before - event.loss))
            self._seen[event.job] = (count + 1, event.loss, largest)
            self._curves.pop(event.job, None)
        elif isinstance(event, ev.JobEnded):
            self._seen.pop(event.job, None)
            self._curves.pop(event.job, None)

    def sizes(self, view: View, jobs: Sequence[JobView], gpus: int, take: Take) -> dict[JobId, int]:
        return marginal_gains((self._candidate(view, job) for job in jobs), gpus, take)

    def _candidate(self, view: View, job: JobView) -> QualityCandidate:
        plain = self.candidates.of(view, job)
        _, _, largest = self._seen.get(job.id, (0, 0.0, 0.0))
        curve = self._curve(job.id) if largest > 0 else None
        dataset = job.description.dataset_size if job.description else 1
        batch = job.wanted.batch if job.wanted else job.job.requested_batch or 0
        return QualityCandidate(
            job=plain.job,
            owner=plain.owner,
            number=plain.number,
            least=plain.least,
            most=plain.most,
            steps=plain.steps,
            step_seconds=plain.step_seconds,
            curve=curve,
            largest_change=largest or 1.0,
            epochs=job.epochs,
            steps_per_epoch=ceil(dataset / max(1, batch or job.base_batch or 1)),
            round_seconds=self._settings.interval,
        )

    def _curve(self, job: JobId) -> QualityCurve | None:
        if job not in self._curves:
            losses = self.estimates.losses(job)
            first = self._seen[job][0] - len(losses) + 1
            self._curves[job] = fit_quality(losses, first_epoch=first)
        return self._curves[job]

    def size_why(self, job: JobView, size: int) -> str:
        if self._curves.get(job.id) is None:
            return "its loss cannot be predicted yet"
        return "each GPU goes where it lowers the loss the most"

    def wait_rule(self, job: JobView) -> str:
        return "earlier jobs have one GPU each"

    def save(self) -> dict[str, Any]:
        return super().save() | {"seen": {job: list(seen) for job, seen in self._seen.items()}}

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self._curves = {}
        self._seen = {
            JobId(job): (int(count), float(last), float(largest))
            for job, (count, last, largest) in saved["seen"].items()
        }
