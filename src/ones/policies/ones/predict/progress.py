"""Predicts the progress of a job: the Beta distributed share ρ of its whole length (§3.2.1).

The search uses `predict`, `quantiles` and `remaining`; users see `forecast`. The model learns when
a job ends; predictions do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.policies.ones.predict.calibration import HIGH, LOW, Calibration
from ones.policies.ones.predict.cold_start import COLD_START_EPOCHS
from ones.policies.ones.predict.history import (
    MOST_EPOCHS,
    Features,
    Floats,
    History,
    Lesson,
    epochs_of,
    features_of,
    rows_of,
)
from ones.policies.ones.predict.kind_lengths import AS_MUCH_AGAIN, KindLengths
from ones.policies.ones.predict.memory import Remembers
from ones.policies.ones.predict.progress_fit import BetaRegression

__all__ = ["Features", "ProgressModel", "features_of"]

POINTS_RECORDED = 5
LEAST_LEFT = 0.05  # epochs: least remaining work of a running job
LEAST_QUANTILE = 1e-4  # of ρ, in a forecast
BLEND = 5.0  # completed jobs that weigh as much as the cold start
POINTS, POINTS_PER_JOB = 1000, 50  # largest number of points, in all and of one job
RHO_RANGE = (0.02, 0.999)  # range of a drawn ρ
KNOWN_SUM = 400.0  # α + β of a job of known length: ±0.04 at ρ = 0.5


class ProgressModel(Remembers):
    """The same calls with the same seed give the same predictions."""

    memory: ClassVar[Mapping[str, Any]] = {
        "_history": None,
        "_regression": None,
        "_lengths": None,
        "_first_of_kind": None,
        "_later_of_kind": None,
    }

    def __init__(self, *, seed: int = 0) -> None:
        self._history = History(points=POINTS, per_job=POINTS_PER_JOB, seed=seed)
        self._regression = BetaRegression()
        self._lengths = KindLengths()
        # predictions for the first job of a kind have other errors than those for later ones
        self._first_of_kind, self._later_of_kind = Calibration(), Calibration()

    @property
    def n_completed(self) -> int:
        """Jobs learned from."""
        return self._history.n_completed

    def record_epoch(self, job: JobId, features: Features) -> None:
        self._history.record(job, features)
        self._lengths.record(job, features.kind, features.epochs)

    def finished(
        self, job: JobId, completed: bool, samples: float | None = None
    ) -> tuple[str, float] | None:
        """Learns from a completed job; returns its kind and length in epochs, if it is known.

        `samples`: its processed samples, if more than in its last epoch report.
        """
        self._lengths.ended(job)
        whole = self._history.length_of(job, samples) if completed else None
        lesson = self._history.ended(job, completed, samples)
        if lesson is not None:
            self._record_predictions(lesson)
            self._history.learn(lesson)
            self._regression.fit(self._history.lessons)
        if whole is not None:
            self._lengths.learn(*whole)
        return whole

    def predict(self, features: Sequence[Features]) -> tuple[Floats, Floats]:
        """Returns α and β of each job's progress, both multiplied by τ."""
        alpha = epochs_of(features)
        furthest = self._lengths.furthest()
        prior = np.array(
            [
                float(self._prior_length(f, np.array(f.epochs), furthest.get(f.kind, 0.0)))
                - f.epochs
                for f in features
            ]
        )
        kinds = [f.kind for f in features]
        beta = self._beta(rows_of(features), alpha, kinds, prior)
        known = np.array([self._lengths.knows(kind) for kind in kinds], np.bool_)
        tau = np.where(known, self._later_of_kind.tau, self._first_of_kind.tau)
        return self._with_known_lengths(features, alpha * tau, beta * tau)

    def _with_known_lengths(
        self, features: Sequence[Features], alpha: Floats, beta: Floats
    ) -> tuple[Floats, Floats]:
        """Replaces α and β of jobs that end after their declared epochs."""
        known_left = np.array(
            [np.nan if f.known_epochs is None else f.known_epochs for f in features]
        )
        done = epochs_of(features)
        scale = KNOWN_SUM / (done + known_left)
        known = ~np.isnan(known_left)
        return np.where(known, done * scale, alpha), np.where(known, known_left * scale, beta)

    def _prior_length(
        self, features: Features | Lesson, done: Floats, furthest: float = 0.0
    ) -> Floats:
        """Returns the declared epochs; without them a usual length, but at least twice the epochs
        that the job, or the `furthest` of its kind, has done."""
        if features.declared_epochs:
            return np.full_like(done, features.declared_epochs)
        usual = features.usual_epochs or COLD_START_EPOCHS
        return np.maximum(usual, AS_MUCH_AGAIN * np.maximum(done, furthest))

    def _beta(self, rows: Floats, alpha: Floats, kinds: Sequence[str], prior: Floats) -> Floats:
        """Returns the epochs left, from cold start, regression and lengths of the kind."""
        prior = np.clip(prior, 1.0, MOST_EPOCHS)
        n = self.n_completed
        if not n:
            return prior
        learned = np.minimum(self._regression.beta(rows, alpha, kinds), MOST_EPOCHS)
        confident = n / (n + BLEND)
        estimates, confidence = self._estimates(learned, alpha, kinds, prior), (1.0, confident, 1.0)
        return np.where(
            np.isnan(estimates[-1]),
            self._first_of_kind.weights.combine(estimates, confidence),
            self._later_of_kind.weights.combine(estimates, confidence),
        )

    def _estimates(
        self, learned: Floats, alpha: Floats, kinds: Sequence[str], prior: Floats
    ) -> Floats:
        left = [self._lengths.left(kind, a) for kind, a in zip(kinds, alpha.tolist(), strict=True)]
        by_kind = np.array([np.nan if x is None else max(x, LEAST_LEFT) for x in left])
        return np.array([prior, learned, by_kind])

    def quantiles(self, alpha: Floats, beta: Floats, n: int) -> Floats:
        """Returns ρ [n, job] as evenly spaced quantiles instead of random draws.

        The order of quantiles is shifted from job to job, so that no draw has only long jobs.
        """
        from scipy.special import betaincinv

        places = (np.arange(n)[:, None] + _shifts(n, len(alpha))) % n
        rho = betaincinv(alpha, beta, (places + 0.5) / n)
        clipped: Floats = np.clip(rho, *RHO_RANGE)
        return clipped

    def remaining(self, features: Sequence[Features], rho: Floats) -> Floats:
        """Returns the remaining samples, Y_processed (1/ρ - 1), with at least one epoch done."""
        return _processed(features) * (1.0 / rho - 1.0)

    def forecast(self, features: Features, alpha: float, beta: float) -> tuple[float, float, float]:
        """Returns the remaining samples of a job: middle (β epochs), low and high end (90 %)."""
        from scipy.special import betaincinv

        rho = np.clip(betaincinv(alpha, beta, [HIGH, LOW]), LEAST_QUANTILE, 1.0)
        low, high = self.remaining([features], rho).tolist()
        middle = float(_processed([features])[0]) * beta / alpha
        return middle, min(low, middle), max(high, middle)

    def _record_predictions(self, lesson: Lesson) -> None:
        """Adds the predictions for a completed job, before it is learned, to the calibration."""
        points = np.unique(np.linspace(0, len(lesson) - 1, POINTS_RECORDED).astype(int))
        alpha, rho = lesson.alpha[points], lesson.rho[points]
        prior = np.maximum(self._prior_length(lesson, alpha) - alpha, 1.0)
        kinds = [lesson.kind] * len(points)
        beta = self._beta(lesson.rows[points], alpha, kinds, prior)
        calibration = (
            self._later_of_kind if self._lengths.knows(lesson.kind) else self._first_of_kind
        )
        calibration.record(alpha, beta, rho)
        learned = self._regression.beta(lesson.rows[points], alpha, kinds)
        estimates = self._estimates(learned, alpha, kinds, prior)
        calibration.weights.record_errors(alpha, estimates, alpha * (1 / rho - 1))


def _shifts(n: int, jobs: int) -> NDArray[np.int64]:
    """Returns shifts that differ much between neighbours: multiples of the golden section."""
    shifts: NDArray[np.int64] = (n * ((np.arange(jobs) * 0.6180339887) % 1.0)).astype(np.int64)
    return shifts


def _processed(features: Sequence[Features]) -> Floats:
    """Returns Y_processed, at least one epoch, so that new jobs have work left."""
    return np.array([max(f.samples, float(f.dataset_size)) for f in features])
