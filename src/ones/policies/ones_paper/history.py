"""Training logs of jobs: the features x of the paper's footnote, and the data set of Eq. 6.

A job adds a point at the end of each epoch. When the job completes, its length is known, and with
it the progress ρ at each of its points. Failed and cancelled jobs teach nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite, log, log1p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.core.view import JobView
from ones.policies.ones_paper.genome import Floats

#: points of the data set, which has a limited size, and of one job
POINTS = 1000
JOB_POINTS = 50
#: a progress of 1 has no density; lengths are in epochs
MOST_RHO, MOST_EPOCHS = 0.999, 1e6
N_FEATURES = 5


class Features(NamedTuple):
    """x of Eq. 6, and what else a prediction needs."""

    dataset_size: int  # ‖D‖
    samples: int  # Y_processed
    first_loss: float | None = None  # L_initial
    loss: float | None = None
    accuracy: float | None = None  # A
    declared_epochs: int | None = None

    @property
    def epochs(self) -> float:
        """Y_processed / ‖D‖."""
        return min(self.samples / self.dataset_size, MOST_EPOCHS)

    @property
    def alpha(self) -> float:
        """α of Eq. 6, with its threshold."""
        return max(self.epochs, 1.0)

    @property
    def processed(self) -> float:
        """Y_processed, at least one epoch: a job that has not run would be free otherwise."""
        return self.alpha * self.dataset_size

    @property
    def row(self) -> tuple[float, ...]:
        """log ‖D‖, log(1 + L_initial), log Y_processed, r_L, A; NaN: not known."""
        first, loss = _known(self.first_loss), _known(self.loss)
        improvement = 1.0 - loss / first if first > 0 else float("nan")  # r_L
        return (
            log(self.dataset_size),
            log1p(max(first, 0.0)) if isfinite(first) else float("nan"),
            log(self.processed),
            max(improvement, -10.0),
            _known(self.accuracy),
        )


def _known(value: float | None) -> float:
    return value if value is not None and isfinite(value) else float("nan")


def features_of(job: JobView, usual_size: int) -> Features:
    """`usual_size`: samples of an epoch, for a job that has not joined."""
    progress = job.progress
    return Features(
        job.description.dataset_size if job.description else usual_size,
        progress.samples,
        progress.first_loss,
        progress.loss,
        progress.accuracy,
        job.job.epochs,
    )


class DataSet(NamedTuple):
    rows: Floats  # [point, feature], NaN: not known
    alpha: Floats
    rho: Floats

    def __add__(self, other: DataSet) -> DataSet:  # type: ignore[override]
        return DataSet(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def chosen(self, points: NDArray[np.int64]) -> DataSet:
        return DataSet(self.rows[points], self.alpha[points], self.rho[points])


EMPTY = DataSet(np.zeros((0, N_FEATURES)), np.zeros(0), np.zeros(0))


class History:
    """Points of running jobs, and the data set of completed ones."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0xBE7A])
        self._running: dict[JobId, list[tuple[int, float, tuple[float, ...]]]] = {}
        self.data = EMPTY
        self.completed = 0  # jobs

    def add_epoch(self, job: JobId, features: Features) -> None:
        if features.samples < 1:  # an evaluation before training: ρ = 0 teaches nothing
            return
        points = self._running.setdefault(job, [])
        points[:] = [point for point in points if point[0] < features.samples]  # resent, or redone
        points.append((features.samples, features.alpha, features.row))
        if len(points) > 2 * JOB_POINTS:
            del points[1::2]

    def end(self, job: JobId, *, completed: bool) -> bool:
        """Returns whether the data set has changed."""
        points = self._running.pop(job, [])
        if not completed or len(points) < 2:
            return False
        total = points[-1][0]
        taught = points[:-1]
        if len(taught) > JOB_POINTS:
            spread = np.linspace(0, len(taught) - 1, JOB_POINTS).astype(int)
            taught = [taught[i] for i in spread.tolist()]
        data = self.data + DataSet(
            np.array([row for _, _, row in taught]),
            np.array([alpha for _, alpha, _ in taught]),
            np.array([min(samples / total, MOST_RHO) for samples, _, _ in taught]),
        )
        if len(data.rho) > POINTS:  # a uniform sample
            data = data.chosen(np.sort(self._rng.permutation(len(data.rho))[:POINTS]))
        self.data, self.completed = data, self.completed + 1
        return True

    def save(self) -> dict[str, Any]:
        return {
            "generator": self._rng.bit_generator.state,
            "completed": self.completed,
            "running": {
                job: [[samples, alpha, _plain(row)] for samples, alpha, row in points]
                for job, points in self._running.items()
            },
            "rows": [_plain(row) for row in self.data.rows.tolist()],
            "alpha": self.data.alpha.tolist(),
            "rho": self.data.rho.tolist(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = saved["generator"]
        self.completed = int(saved["completed"])
        self._running = {
            JobId(job): [(int(n), float(alpha), _numbers(row)) for n, alpha, row in points]
            for job, points in saved["running"].items()
        }
        rows = np.array([_numbers(row) for row in saved["rows"]], float)
        self.data = DataSet(
            rows.reshape(-1, N_FEATURES), np.array(saved["alpha"]), np.array(saved["rho"])
        )


def _plain(row: Iterable[float]) -> list[float | None]:
    return [value if isfinite(value) else None for value in row]


def _numbers(row: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(float("nan") if value is None else float(value) for value in row)


class Standardiser:
    """Features with mean 0 and standard deviation 1; unknown ones are the mean."""

    FARTHEST = 4.0  # standard deviations

    def __init__(self) -> None:
        self.mean, self.sd = np.zeros(N_FEATURES), np.ones(N_FEATURES)

    def fit(self, rows: Floats) -> None:
        known = np.isfinite(rows)
        n = np.maximum(known.sum(axis=0), 1)
        self.mean = np.where(known, rows, 0.0).sum(axis=0) / n
        sd = np.sqrt((np.where(known, rows - self.mean, 0.0) ** 2).sum(axis=0) / n)
        self.sd = np.where(sd < 1e-9, 1.0, sd)

    def apply(self, rows: Floats) -> Floats:
        z = np.clip((rows - self.mean) / self.sd, -self.FARTHEST, self.FARTHEST)
        return np.where(np.isnan(z), 0.0, z)
