"""Calibration of predictions: the temperature of the Beta distribution and the estimate weights.

Predictions of completed jobs are compared with their real progress. The first jobs of a kind have
a calibration of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ones.policies.ones.predict.estimate_weights import EstimateWeights
from ones.policies.ones.predict.history import Floats
from ones.policies.ones.predict.memory import Remembers

COVERAGE = 0.9
LOW, HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
TAUS = np.geomspace(2.0, 0.05, 14)  # candidates, from the narrowest distribution
LEAST_PAST = 5  # jobs needed to choose tau
MOST_PAST = 200  # jobs


class PastPredictions(NamedTuple):
    """Predictions for a completed job, made without learning from it, and its real progress."""

    alpha: Floats
    beta: Floats
    rho: Floats


class Calibration(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "weights": None,
        "tau": float,
        "_past": list[PastPredictions],
        "_seen": int,
    }

    def __init__(self) -> None:
        self.weights = EstimateWeights()
        self.tau = 1.0  # factor of both parameters of the Beta distribution
        self._past: list[PastPredictions] = []  # of the last completed jobs
        self._seen = 0

    def record(self, alpha: Floats, beta: Floats, rho: Floats) -> None:
        """Adds a completed job and updates τ.

        Only the later half of the jobs counts, since early predictions knew less than present ones.
        """
        self._seen += 1
        self._past = [*self._past[1 - MOST_PAST :], PastPredictions(alpha, beta, rho)]
        recent = self._past[-max(LEAST_PAST, (self._seen + 1) // 2) :]
        if len(recent) >= LEAST_PAST:
            self.tau = calibrated_tau(*map(np.concatenate, zip(*recent, strict=True)))


def calibrated_tau(alpha: Floats, beta: Floats, rho: Floats) -> float:
    """Returns the largest τ with which 90 % intervals of Be(τα, τβ) cover 90 % of ρ; if there is
    none, the τ with the best coverage."""
    best, best_coverage = 1.0, -1.0
    sharper, sharper_coverage = 0.0, 0.0
    for tau in map(float, TAUS):
        coverage = coverage_of(tau * alpha, tau * beta, rho)
        if coverage >= COVERAGE:
            if not sharper:
                return tau
            part = (COVERAGE - sharper_coverage) / (coverage - sharper_coverage)
            return float(sharper * (tau / sharper) ** part)
        if coverage >= best_coverage:
            best, best_coverage = tau, coverage
        sharper, sharper_coverage = tau, coverage
    return best


def coverage_of(alpha: Floats, beta: Floats, rho: Floats) -> float:
    """Returns the share of points within their 90 % intervals."""
    from scipy.special import betainc

    below = betainc(alpha, beta, rho)
    return float(np.mean((below >= LOW) & (below <= HIGH)))
