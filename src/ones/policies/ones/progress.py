"""How far a job is: the Beta distributed part ρ of its whole length (§3.2.1).

Says what the search draws from (`predict`, `draws`, `remaining`) and what users read
(`forecast`). Learns when a job ends; predicting changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.policies.ones.history import (
    Features,
    Floats,
    History,
    Lesson,
    epochs_of,
    features_of,
    rows_of,
)
from ones.policies.ones.progress_fit import LINKS, BetaRegression

__all__ = ["Features", "ProgressModel", "ProgressSettings", "features_of"]

COVERAGE = 0.9
_LOW, _HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
TAUS = np.geomspace(2.0, 0.05, 14)  # tried from the sharpest on
LEAST_HELD = 5  # jobs: with fewer, nothing is known of how good we are
MOST_HELD = 200  # jobs, and points of each
HELD_PER_JOB = 5
LEAST_QUANTILE = 1e-4  # of ρ, in a forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSettings:
    link: str = field(
        default="softplus",
        metadata={"help": "how epochs left follow from features: softplus, or max as printed"},
    )
    kinds: bool = field(
        default=True, metadata={"help": "jobs of a kind teach more about one another"}
    )
    temper: bool = field(
        default=True,
        metadata={"help": "widen or narrow predictions so that 90 % intervals cover 90 %"},
    )
    cold_start_epochs: float = field(
        default=30.0, metadata={"help": "length of a job that declares none, at first"}
    )
    blend: float = field(
        default=5.0, metadata={"help": "finished jobs that weigh as much as the cold start"}
    )
    points: int = field(default=1000, metadata={"help": "points learned from, at most"})
    per_job: int = field(default=50, metadata={"help": "points of one job, at most"})
    rho_least: float = field(default=0.02, metadata={"help": "a drawn progress is at least this"})
    rho_most: float = field(default=0.999, metadata={"help": "a drawn progress is at most this"})

    def __post_init__(self) -> None:
        if self.link not in LINKS:
            raise ValueError(f"link {self.link} is not one of {', '.join(LINKS)}")
        for name in ("cold_start_epochs", "points", "per_job"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} {getattr(self, name)} is not at least 1")
        if not self.blend > 0:
            raise ValueError(f"blend {self.blend} is not above 0")
        if not 0 < self.rho_least < self.rho_most < 1:
            raise ValueError(
                f"rho_least {self.rho_least}, rho_most {self.rho_most} are not in order in 0..1"
            )


class Held(NamedTuple):
    """What was predicted of a job before it was learned from, and what came true."""

    alpha: Floats
    beta: Floats
    rho: Floats


class ProgressModel:
    """The same calls with the same seed give the same predictions."""

    def __init__(self, settings: ProgressSettings | None = None, *, seed: int = 0) -> None:
        self._settings = settings = settings or ProgressSettings()
        self._history = History(points=settings.points, per_job=settings.per_job, seed=seed)
        self._regression = BetaRegression(link=settings.link, kinds=settings.kinds)
        self._held: list[Held] = []  # of the last jobs
        self.tau = 1.0

    @property
    def n_completed(self) -> int:
        """Jobs learned from."""
        return self._history.n_completed

    @property
    def n_points(self) -> int:
        """Points learned from."""
        return self._history.n_points

    def saw_epoch(self, job: JobId, features: Features) -> None:
        self._history.saw(job, features)

    def finished(self, job: JobId, completed: bool, samples: float | None = None) -> None:
        """Learn, if it got to its end. `samples` if it did more than its last epoch told."""
        lesson = self._history.ended(job, completed, samples)
        if lesson is None:
            return
        if self._settings.temper:
            self._hold(lesson)
        self._history.learn(lesson)
        self._regression.fit(self._history.lessons)

    def predict(self, features: Sequence[Features]) -> tuple[Floats, Floats]:
        """α and β of each job's progress. Tempered: both, not β alone, tell the epochs left."""
        alpha = epochs_of(features)
        prior = np.array([self._whole(f.declared_epochs) - f.epochs for f in features])
        beta = self._beta(rows_of(features), alpha, [f.kind for f in features], prior)
        return alpha * self.tau, beta * self.tau

    def _whole(self, declared_epochs: int | None) -> float:
        return declared_epochs or self._settings.cold_start_epochs

    def _beta(self, rows: Floats, alpha: Floats, kinds: Sequence[str], prior: Floats) -> Floats:
        """Epochs left: the cold start's, and more and more the regression's."""
        prior = np.maximum(prior, 1.0)
        n = self.n_completed
        if not n:
            return prior
        weight = n / (n + self._settings.blend)
        return weight * self._regression.beta(rows, alpha, kinds) + (1 - weight) * prior

    def draws(self, alpha: Floats, beta: Floats, n: int, rng: np.random.Generator) -> Floats:
        """ρ, (n, jobs): line 2 of Algorithm 1, n times."""
        rho = rng.beta(alpha, beta, (n, len(alpha)))
        return np.clip(rho, self._settings.rho_least, self._settings.rho_most)

    def quantiles(self, alpha: Floats, beta: Floats, n: int) -> Floats:
        """ρ, (n, jobs), as `draws` but even and without chance: the i-th draw is a quantile.

        Which one is shifted from job to job, so that no draw takes all jobs for long ones.
        """
        from scipy.special import betaincinv

        places = (np.arange(n)[:, None] + _shifts(n, len(alpha))) % n
        rho = betaincinv(alpha, beta, (places + 0.5) / n)
        clipped: Floats = np.clip(rho, self._settings.rho_least, self._settings.rho_most)
        return clipped

    def remaining(self, features: Sequence[Features], rho: Floats) -> Floats:
        """Samples to go, Y = Y_processed (1/ρ - 1); of a new job an epoch counts as done."""
        return _processed(features) * (1.0 / rho - 1.0)

    def forecast(self, features: Features, alpha: float, beta: float) -> tuple[float, float, float]:
        """Samples to go of one job: in the middle (β epochs), and the ends of a 90 % interval."""
        from scipy.special import betaincinv

        rho = np.clip(betaincinv(alpha, beta, [_HIGH, _LOW]), LEAST_QUANTILE, 1.0)
        low, high = self.remaining([features], rho).tolist()
        middle = float(_processed([features])[0]) * beta / alpha
        return middle, min(low, middle), max(high, middle)

    def _hold(self, lesson: Lesson) -> None:
        """Before it is learned: what would we have said? Then the sharpest τ that is honest.

        Only the later half of the jobs counts: what was said early, knowing little, tells
        nothing of how good we are now.
        """
        some = np.unique(np.linspace(0, len(lesson) - 1, HELD_PER_JOB).astype(int))
        alpha = lesson.alpha[some]
        prior = self._whole(lesson.declared_epochs) - alpha
        beta = self._beta(lesson.rows[some], alpha, [lesson.kind] * len(some), prior)
        self._held = [*self._held[1 - MOST_HELD :], Held(alpha, beta, lesson.rho[some])]
        recent = self._held[-max(LEAST_HELD, (self.n_completed + 1) // 2) :]
        if len(recent) >= LEAST_HELD:
            self.tau = honest_tau(*map(np.concatenate, zip(*recent, strict=True)))

    def save(self) -> dict[str, Any]:
        return {
            "history": self._history.save(),
            "regression": self._regression.save(),
            "held": [[column.tolist() for column in held] for held in self._held],
            "tau": self.tau,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._history.load(saved["history"])
        self._regression.load(saved["regression"])
        self._held = [Held(*map(np.array, held)) for held in saved["held"]]
        self.tau = saved["tau"]


def honest_tau(alpha: Floats, beta: Floats, rho: Floats) -> float:
    """The largest τ with which 90 % intervals of Be(τα, τβ) cover 90 % of ρ; else the best."""
    best, best_coverage = 1.0, -1.0
    sharper, sharper_coverage = 0.0, 0.0
    for tau in map(float, TAUS):
        coverage = covered(tau * alpha, tau * beta, rho)
        if coverage >= COVERAGE:
            if not sharper:
                return tau
            part = (COVERAGE - sharper_coverage) / (coverage - sharper_coverage)
            return float(sharper * (tau / sharper) ** part)
        if coverage >= best_coverage:
            best, best_coverage = tau, coverage
        sharper, sharper_coverage = tau, coverage
    return best


def covered(alpha: Floats, beta: Floats, rho: Floats) -> float:
    """The part of the points that lies in its 90 % interval."""
    from scipy.special import betainc

    below = betainc(alpha, beta, rho)
    return float(np.mean((below >= _LOW) & (below <= _HIGH)))


def _shifts(n: int, jobs: int) -> NDArray[np.int64]:
    """Far apart for neighbours: multiples of the golden section."""
    shifts: NDArray[np.int64] = (n * ((np.arange(jobs) * 0.6180339887) % 1.0)).astype(np.int64)
    return shifts


def _processed(features: Sequence[Features]) -> Floats:
    """Y_processed, at least one epoch: a job that has never run is not free."""
    return np.array([max(f.samples, float(f.dataset_size)) for f in features])
