"""Beta regression of the remaining epochs of a job, fitted to completed jobs.

    ρ ~ Be(α, β)        α = epochs done, given        β = 1 + softplus(A z + b), fitted

z are the five features of the paper, standardised over the points. The fit is the maximum a
posteriori, with an exact gradient; it starts from the previous fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.policies.ones.predict.history import Floats, Lesson
from ones.policies.ones.predict.memory import Remembers

START = 10.0  # epochs left before the first fit
PENALTY = 1e-3  # on |A|²
FARTHEST = 4.0  # largest absolute value of a standardised feature
COLD_STEPS, WARM_STEPS = 200, 30  # largest number of optimiser steps
MOST_KINDS = 24  # kinds with a coefficient of their own
YOUNG = 2.0  # epochs: unknown features of new jobs are the mean of such points


class Data(NamedTuple):
    x: Floats  # (n, p) standardised features, then kinds
    alpha: Floats
    rho: Floats


def link_of(u: Floats) -> tuple[Floats, Floats]:
    """Returns β >= 1 and dβ/du. The paper's max(1, u) is flat below 1 (docs/paper.md, 14)."""
    from scipy.special import expit

    return 1.0 + np.logaddexp(0.0, u), expit(u)


def loss_and_gradient(theta: Floats, data: Data) -> tuple[float, Floats]:
    """Returns -mean log likelihood + penalty of θ = (A, b), and its gradient."""
    from scipy.special import betaln, psi

    a = theta[:-1]
    beta, slope = link_of(data.x @ a + theta[-1])
    rest = np.log1p(-data.rho)
    likelihood = (data.alpha - 1) * np.log(data.rho) + (beta - 1) * rest - betaln(data.alpha, beta)
    down = -slope * (rest - psi(beta) + psi(data.alpha + beta)) / len(beta)
    gradient = np.append(down @ data.x + 2 * PENALTY * a, down.sum())
    return float(PENALTY * (a @ a) - likelihood.mean()), gradient


class BetaRegression(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "_kinds": list[str],
        "_mean": np.ndarray,
        "_sd": np.ndarray,
        "_early_mean": np.ndarray,
        "_a": np.ndarray,
        "_b": float,
        "_fitted": bool,
    }

    def __init__(self) -> None:
        self._kinds: list[str] = []
        self._mean, self._sd, self._early_mean = np.zeros(5), np.ones(5), np.zeros(5)
        self._a, self._b = np.zeros(5), START  # A, b
        self._fitted = False

    def fit(self, lessons: Sequence[Lesson]) -> None:
        """Fits these points. A warm start has few steps: the next fit continues from there."""
        from scipy.optimize import minimize

        if not lessons:
            return
        data = self._prepare(lessons)
        start = np.append(self._a, self._b)
        found = minimize(
            loss_and_gradient,
            start,
            args=(data,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": WARM_STEPS if self._fitted else COLD_STEPS},
        ).x
        self._a, self._b, self._fitted = found[:-1], float(found[-1]), True

    def beta(self, rows: Floats, alpha: Floats, kinds: Sequence[str]) -> Floats:
        """Returns the epochs left, at least 1."""
        z = self._standardise(rows)
        unknown = np.isnan(z)
        z[unknown] = np.where(alpha[:, None] < YOUNG, self._early_mean, 0.0)[unknown]
        return link_of(self._design(z, kinds) @ self._a + self._b)[0]

    def _prepare(self, lessons: Sequence[Lesson]) -> Data:
        """Returns the points as arrays; sets scale and kinds, and converts A and b to them."""
        rows = np.concatenate([lesson.rows for lesson in lessons])
        alpha = np.concatenate([lesson.alpha for lesson in lessons])
        rho = np.concatenate([lesson.rho for lesson in lessons])
        mean = _known_mean(rows)
        sd = np.sqrt(_known_mean((rows - mean) ** 2))
        sd[sd < 1e-9] = 1.0
        # the function of the rows stays the same on the new scale
        self._b += float(self._a[:5] @ ((mean - self._mean) / self._sd))
        self._a[:5] *= sd / self._sd
        self._mean, self._sd = mean, sd
        self._set_kinds(lessons)
        z = self._standardise(rows)
        self._early_mean = _known_mean(z[alpha < YOUNG])
        z[np.isnan(z)] = 0.0  # the mean
        kinds = [lesson.kind for lesson in lessons for _ in range(len(lesson))]
        return Data(self._design(z, kinds), alpha, rho)

    def _set_kinds(self, lessons: Sequence[Lesson]) -> None:
        """Sets the most frequent kinds; known ones keep their coefficients."""
        before = dict(zip(self._kinds, self._a[5:], strict=True))
        jobs = Counter(lesson.kind for lesson in lessons)
        often = sorted(jobs, key=lambda kind: (-jobs[kind], kind))[:MOST_KINDS]
        self._kinds = sorted(often)
        own = [before.get(kind, 0.0) for kind in self._kinds]
        self._a = np.append(self._a[:5], own)

    def _standardise(self, rows: Floats) -> Floats:
        return np.clip((rows - self._mean) / self._sd, -FARTHEST, FARTHEST)

    def _design(self, z: Floats, kinds: Sequence[str]) -> Floats:
        if not self._kinds:
            return z
        place = {kind: i for i, kind in enumerate(self._kinds)}
        number: NDArray[np.intp] = np.array([place.get(kind, -1) for kind in kinds], np.intp)
        return np.hstack([z, (number[:, None] == np.arange(len(place))).astype(float)])


def _known_mean(columns: Floats) -> Floats:
    """Returns the mean of the known values of each column; 0 without any."""
    known = ~np.isnan(columns)
    mean: Floats = np.where(known, columns, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean
