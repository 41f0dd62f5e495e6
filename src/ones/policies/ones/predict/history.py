"""Training data of the progress predictor: a bounded sample of the epochs of completed jobs.

Epochs of a running job are stored until it ends. They become lessons if the job completes and are
deleted if it fails or is killed. The sample is uniform over jobs, then over the epochs of a job, so
that long jobs do not dominate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import isfinite, isnan, log, log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.job import Job, JobId
from ones.core.view import JobView

Floats = NDArray[np.float64]

MOST_EPOCHS = 1e9  # done or left of any job: quantiles of Be(α, β) are NaN far beyond
MOST_RHO = 0.999  # of a training point: ln(1 - ρ) must be finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Input of the Beta regression (footnote of §3.2.1) and of its cold start."""

    dataset_size: int  # ‖D‖
    samples: float  # Y_processed, or effective samples
    first_loss: float | None = None  # L_initial
    loss: float | None = None
    accuracy: float | None = None  # A
    kind: str = ""
    declared_epochs: int | None = None
    usual_epochs: float | None = None  # estimate from the time of an epoch
    known_epochs: float | None = (
        None  # remaining epochs of a job that ends after its declared epochs
    )

    @property
    def epochs(self) -> float:
        return min(self.samples / self.dataset_size, MOST_EPOCHS)

    @property
    def known_improvement(self) -> float | None:
        """r_L = 1 - loss / first loss; None if one of them is unknown or invalid."""
        first, loss = self.first_loss, self.loss
        if first is None or loss is None or not (isfinite(loss) and first > 0 and isfinite(first)):
            return None
        return min(
            1.0, max(-1.0, 1.0 - loss / first)
        )  # bounded: a diverging loss must not dominate

    @property
    def improvement(self) -> float:
        """r_L; 0 when unknown."""
        return self.known_improvement or 0.0


def features_of(view: JobView, samples: float | None = None) -> Features | None:
    """Returns the features of a job, or None before it joins. `samples` replaces the raw count."""
    if view.description is None:
        return None
    progress = view.progress
    return Features(
        dataset_size=view.description.dataset_size,
        samples=progress.samples if samples is None else samples,
        first_loss=progress.first_loss,
        loss=progress.loss,
        accuracy=progress.accuracy,
        kind=view.job.kind,
        declared_epochs=view.job.epochs,
        known_epochs=known_epochs(view.job, progress.samples / view.description.dataset_size),
    )


def known_epochs(job: Job, done: float = 0.0) -> float | None:
    """Returns the remaining declared epochs; None if the job may end by accuracy or patience, or
    has already done more."""
    rule = job.stop
    if job.epochs is None or rule.target_accuracy is not None or rule.patience is not None:
        return None
    left = min(job.epochs, rule.max_epochs or job.epochs) - done
    return left if left > 0 else None


def epochs_of(features: Sequence[Features]) -> Floats:
    """α: epochs done, at least 1."""
    return np.array([max(f.epochs, 1.0) for f in features])


def rows_of(features: Sequence[Features]) -> Floats:
    """Columns: log ‖D‖, log(1 + L_initial), log Y_processed, r_L, accuracy; NaN: unknown."""
    rows = [
        (
            log(f.dataset_size),
            _known(None if f.first_loss is None else log1p(max(f.first_loss, 0.0))),
            log(max(f.samples, f.dataset_size)),  # at least one epoch, as α
            _known(f.known_improvement),
            _known(f.accuracy),
        )
        for f in features
    ]
    return np.array(rows, float).reshape(len(rows), 5)


def _known(value: float | None) -> float:
    return value if value is not None and isfinite(value) else float("nan")


@dataclass(frozen=True, slots=True)
class Lesson:
    """Training points of one completed job: some of its epochs, in their order."""

    kind: str
    rows: Floats  # (n, 5), as `rows_of` makes them
    alpha: Floats  # epochs done
    rho: Floats  # share of the whole length that was done, below 1
    declared_epochs: int | None = None
    usual_epochs: float | None = None

    def __len__(self) -> int:
        return len(self.rho)

    def select(self, places: NDArray[np.intp]) -> Lesson:
        rows, alpha, rho = self.rows[places], self.alpha[places], self.rho[places]
        return Lesson(self.kind, rows, alpha, rho, self.declared_epochs, self.usual_epochs)

    def save(self) -> dict[str, Any]:
        rows = [[None if isnan(x) else x for x in row] for row in self.rows.tolist()]
        return {
            "kind": self.kind,
            "rows": rows,
            "alpha": self.alpha.tolist(),
            "rho": self.rho.tolist(),
            "declared_epochs": self.declared_epochs,
            "usual_epochs": self.usual_epochs,
        }

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Lesson:
        rows = np.array(saved["rows"], float).reshape(-1, 5)
        alpha, rho = np.array(saved["alpha"]), np.array(saved["rho"])
        return cls(saved["kind"], rows, alpha, rho, saved["declared_epochs"], saved["usual_epochs"])


class _Epochs:
    """Epochs of a running job: the last one, and a bounded number of earlier ones."""

    __slots__ = ("before", "every", "kept", "last")

    def __init__(self, first: Features) -> None:
        self.last = first
        self.kept: list[Features] = []
        self.before, self.every = 0, 1  # earlier epochs; every n-th of them is kept

    def add(self, features: Features, most: int) -> None:
        if features.samples <= self.last.samples:  # repeated report, or restored from a checkpoint
            self.kept = [f for f in self.kept if f.samples < features.samples]
            self.last = features
            return
        if self.before % self.every == 0:
            self.kept.append(self.last)
        if len(self.kept) > most:
            del self.kept[1::2]
            self.every *= 2
        self.before += 1
        self.last = features


class History:
    """Keeps at most `points` points of completed jobs, and `per_job` points of each job.

    Equal calls with an equal seed keep equal points.
    """

    def __init__(self, *, points: int, per_job: int, seed: int) -> None:
        self._points, self._per_job = points, per_job
        self._rng = np.random.default_rng([seed, 0xBE7A])
        self._running: dict[JobId, _Epochs] = {}
        self._lessons: list[Lesson] = []
        self.n_completed = 0  # jobs with a lesson, including dropped ones

    @property
    def lessons(self) -> Sequence[Lesson]:
        return self._lessons

    @property
    def n_points(self) -> int:
        return sum(map(len, self._lessons))

    def record(self, job: JobId, features: Features) -> None:
        if job in self._running:
            self._running[job].add(features, self._per_job)
        else:
            self._running[job] = _Epochs(features)

    def length_of(self, job: JobId, samples: float | None = None) -> tuple[str, float] | None:
        """Returns kind and length in epochs of a job that ends now; None: no report."""
        epochs = self._running.get(job)
        if epochs is None:
            return None
        last = epochs.last
        total = last.samples if samples is None else samples
        return last.kind, min(total / last.dataset_size, MOST_EPOCHS)

    def ended(self, job: JobId, completed: bool, samples: float | None = None) -> Lesson | None:
        """Returns the lesson of an ended job, if it has one.

        `samples`: its processed samples, if more than in its last epoch report.
        """
        epochs = self._running.pop(job, None)
        if epochs is None or not completed:
            return None
        last = epochs.last
        total = last.samples if samples is None else samples
        seen = sorted((*epochs.kept, last), key=lambda f: f.samples)
        seen = [f for f in seen if 0 < f.samples < total][: self._per_job]
        if not seen:
            return None  # a job of one epoch has nothing to predict
        rho = np.minimum([f.samples / total for f in seen], MOST_RHO)
        return Lesson(
            last.kind, rows_of(seen), epochs_of(seen), rho, last.declared_epochs, last.usual_epochs
        )

    def learn(self, lesson: Lesson) -> None:
        self.n_completed += 1
        if len(self._lessons) < self._points:
            self._lessons.append(lesson)
        elif (place := int(self._rng.integers(self.n_completed))) < self._points:
            self._lessons[place] = (
                lesson  # reservoir sampling: all completed jobs are equally likely
            )
        self._drop_points()

    def _drop_points(self) -> None:
        """Drops points of the jobs with most points until the number is within its limit."""
        excess = self.n_points - self._points
        if excess <= 0:
            return
        had = np.array([len(lesson) for lesson in self._lessons])
        counts = had.copy()
        for _ in range(excess):
            longest = np.flatnonzero(counts == counts.max())
            counts[longest[self._rng.integers(len(longest))]] -= 1
        for job in np.flatnonzero(counts < had).tolist():
            keep = self._rng.permutation(had[job])[: counts[job]]
            self._lessons[job] = self._lessons[job].select(np.sort(keep))

    def save(self) -> dict[str, Any]:
        return {
            "generator": self._rng.bit_generator.state,
            "completed": self.n_completed,
            "lessons": [lesson.save() for lesson in self._lessons],
            "running": {
                job: {"epochs": _plain((*e.kept, e.last)), "before": e.before, "every": e.every}
                for job, e in self._running.items()
            },
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = saved["generator"]
        self.n_completed = saved["completed"]
        self._lessons = [Lesson.of(lesson) for lesson in saved["lessons"]]
        self._running = {}
        for job, told in saved["running"].items():
            *kept, last = (Features(**dict(zip(_FIELDS, f, strict=True))) for f in told["epochs"])
            epochs = self._running[JobId(job)] = _Epochs(last)
            epochs.kept, epochs.before, epochs.every = kept, told["before"], told["every"]


_FIELDS = Features.__slots__


def _plain(features: Iterable[Features]) -> list[list[Any]]:
    """Returns JSON values: JSON has no NaN, so an invalid loss becomes unknown."""
    return [
        [None if isinstance(x, float) and not isfinite(x) else x for x in astuple(f)]
        for f in features
    ]
