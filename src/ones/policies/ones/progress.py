"""How far a job is: the Beta distributed part ρ of its whole length (§3.2.1).

Says what the search draws from (`predict`, `draws`, `remaining`) and what users read
(`forecast`). Learns when a job ends; predicting changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.policies.ones.calibration import HIGH, LOW, Calibration
from ones.policies.ones.history import (
    MOST_EPOCHS,
    Features,
    Floats,
    History,
    Lesson,
    epochs_of,
    features_of,
    rows_of,
)
from ones.policies.ones.kind_lengths import AS_MUCH_AGAIN, KindLengths
from ones.policies.ones.progress_fit import LINKS, BetaRegression

__all__ = ["Features", "ProgressModel", "ProgressSettings", "features_of"]

HELD_PER_JOB = 5
LEAST_LEFT = 0.05  # epochs: a job that should be over ends soon
LEAST_QUANTILE = 1e-4  # of ρ, in a forecast
SURE = 400.0  # α + β of a job whose length is known: half of it is done, to 4 percent


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
    declared: bool = field(
        default=True,
        metadata={"help": "epochs that a user has declared are right, where nothing else ends it"},
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


class ProgressModel:
    """The same calls with the same seed give the same predictions."""

    def __init__(self, settings: ProgressSettings | None = None, *, seed: int = 0) -> None:
        self._settings = settings = settings or ProgressSettings()
        self._history = History(points=settings.points, per_job=settings.per_job, seed=seed)
        self._regression = BetaRegression(link=settings.link, kinds=settings.kinds)
        self._lengths = KindLengths()
        # what is said of the first of a kind is judged apart from what is said of the others
        self._strangers, self._relatives = Calibration(), Calibration()

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
        if self._settings.kinds:
            self._lengths.saw(job, features.kind, features.epochs)

    def finished(self, job: JobId, completed: bool, samples: float | None = None) -> float | None:
        """Learn, if it got to its end. `samples` if it did more than its last epoch told.

        Gives its length in epochs, if there is one to tell.
        """
        self._lengths.ended(job)
        whole = self._history.whole(job, samples) if completed else None
        lesson = self._history.ended(job, completed, samples)
        if lesson is not None and self._settings.temper:
            self._hold(lesson)
        if lesson is not None:
            self._history.learn(lesson)
            self._regression.fit(self._history.lessons)
        if whole is None:
            return None
        kind, epochs = whole
        if self._settings.kinds:
            self._lengths.learn(kind, epochs)
        return epochs

    def predict(self, features: Sequence[Features]) -> tuple[Floats, Floats]:
        """α and β of each job's progress. Tempered: both, not β alone, tell the epochs left."""
        alpha = epochs_of(features)
        furthest = self._lengths.furthest()
        prior = np.array([self._whole(f, furthest.get(f.kind, 0.0)) - f.epochs for f in features])
        kinds = [f.kind for f in features]
        beta = self._beta(rows_of(features), alpha, kinds, prior)
        known = np.array([self._lengths.knows(kind) for kind in kinds], np.bool_)
        tau = np.where(known, self._relatives.tau, self._strangers.tau)
        return self._with_the_sure(features, alpha * tau, beta * tau)

    def outlived(self, jobs: Sequence[JobId], features: Sequence[Features]) -> Floats:
        """What `predict` says is left of each job is to be taken times this, at least 1.

        The short ones end first and teach what jobs look like when they end. A long one, of a kind
        of which none has completed, looks like that for most of its life. So it is asked what
        would be said of it as it was before: if it has outlived that each time, by a factor, what
        is said of it now is wrong by that factor, too. Where every job is a kind of its own, long
        ones have taught what long ones look like, and nothing is amiss.
        """
        asked = [
            (place, then)
            for place, (job, now) in enumerate(zip(jobs, features, strict=True))
            if now.sure_epochs is None and self._lengths.lacks(now.kind)
            for then in self._history.earlier(job, now.samples)
        ]
        factors = np.full(len(jobs), np.inf)
        if asked:
            before = [then for _, then in asked]
            alpha, beta = self.predict(before)
            since = np.array([features[place].samples - then.samples for place, then in asked])
            places = np.array([place for place, _ in asked])
            np.minimum.at(factors, places, since / (_processed(before) * beta / alpha))
        return np.where(np.isfinite(factors), np.maximum(factors, 1.0), 1.0)

    def _with_the_sure(
        self, features: Sequence[Features], alpha: Floats, beta: Floats
    ) -> tuple[Floats, Floats]:
        """A job that does the epochs its user has declared is not to be guessed."""
        if not self._settings.declared:
            return alpha, beta
        sure = np.array([np.nan if f.sure_epochs is None else f.sure_epochs for f in features])
        done = epochs_of(features)
        scale = SURE / (done + sure)
        known = ~np.isnan(sure)
        return np.where(known, done * scale, alpha), np.where(known, sure * scale, beta)

    def _whole(self, features: Features | Lesson, furthest: float = 0.0) -> float:
        if features.declared_epochs:
            return features.declared_epochs
        usual = features.usual_epochs or self._settings.cold_start_epochs
        return max(usual, AS_MUCH_AGAIN * furthest)

    def _beta(self, rows: Floats, alpha: Floats, kinds: Sequence[str], prior: Floats) -> Floats:
        """Epochs left: the cold start's, and more and more the regression's and the kind's."""
        prior = np.clip(prior, 1.0, MOST_EPOCHS)
        n = self.n_completed
        if not n:
            return prior
        learned = np.minimum(self._regression.beta(rows, alpha, kinds), MOST_EPOCHS)
        ripe = n / (n + self._settings.blend)
        if not self._settings.kinds:
            return ripe * learned + (1 - ripe) * prior
        opinions, ripeness = self._opinions(learned, alpha, kinds, prior), (1.0, ripe, 1.0)
        return np.where(
            np.isnan(opinions[-1]),
            self._strangers.trust.mixed(opinions, ripeness),
            self._relatives.trust.mixed(opinions, ripeness),
        )

    def _opinions(
        self, learned: Floats, alpha: Floats, kinds: Sequence[str], prior: Floats
    ) -> Floats:
        left = [self._lengths.left(kind, a) for kind, a in zip(kinds, alpha.tolist(), strict=True)]
        by_kind = np.array([np.nan if x is None else max(x, LEAST_LEFT) for x in left])
        return np.array([prior, learned, by_kind])

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

        rho = np.clip(betaincinv(alpha, beta, [HIGH, LOW]), LEAST_QUANTILE, 1.0)
        low, high = self.remaining([features], rho).tolist()
        middle = float(_processed([features])[0]) * beta / alpha
        return middle, min(low, middle), max(high, middle)

    def _hold(self, lesson: Lesson) -> None:
        """Before it is learned: what would we have said?"""
        some = np.unique(np.linspace(0, len(lesson) - 1, HELD_PER_JOB).astype(int))
        alpha, rho = lesson.alpha[some], lesson.rho[some]
        prior = np.maximum(self._whole(lesson) - alpha, 1.0)
        kinds = [lesson.kind] * len(some)
        beta = self._beta(lesson.rows[some], alpha, kinds, prior)
        judged = self._relatives if self._lengths.knows(lesson.kind) else self._strangers
        judged.saw(alpha, beta, rho)
        if self._settings.kinds:
            learned = self._regression.beta(lesson.rows[some], alpha, kinds)
            opinions = self._opinions(learned, alpha, kinds, prior)
            judged.trust.judge(alpha, opinions, alpha * (1 / rho - 1))

    def save(self) -> dict[str, Any]:
        return {
            "history": self._history.save(),
            "regression": self._regression.save(),
            "lengths": self._lengths.save(),
            "strangers": self._strangers.save(),
            "relatives": self._relatives.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._history.load(saved["history"])
        self._regression.load(saved["regression"])
        self._lengths.load(saved["lengths"])
        self._strangers.load(saved["strangers"])
        self._relatives.load(saved["relatives"])


def _shifts(n: int, jobs: int) -> NDArray[np.int64]:
    """Far apart for neighbours: multiples of the golden section."""
    shifts: NDArray[np.int64] = (n * ((np.arange(jobs) * 0.6180339887) % 1.0)).astype(np.int64)
    return shifts


def _processed(features: Sequence[Features]) -> Floats:
    """Y_processed, at least one epoch: a job that has never run is not free."""
    return np.array([max(f.samples, float(f.dataset_size)) for f in features])
