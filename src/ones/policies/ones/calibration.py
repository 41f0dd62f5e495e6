"""How good predictions have been: how wide they must be, and whom to believe.

What was said of a job is held until it has completed; then it is compared with what came
true. The first jobs of their kinds are judged apart from later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ones.policies.ones.estimate_weights import EstimateWeights
from ones.policies.ones.history import Floats

COVERAGE = 0.9
LOW, HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
TAUS = np.geomspace(2.0, 0.05, 14)  # tried from the sharpest on
LEAST_PAST = 5  # jobs: with fewer, nothing is known of how good we are
MOST_PAST = 200  # jobs


class PastPredictions(NamedTuple):
    """What was predicted of a job before it was learned from, and what came true."""

    alpha: Floats
    beta: Floats
    rho: Floats


class Calibration:
    def __init__(self) -> None:
        self.weights = EstimateWeights()
        self.tau = 1.0  # both parameters are multiplied by it
        self._past: list[PastPredictions] = []  # of the last jobs
        self._seen = 0

    def record(self, alpha: Floats, beta: Floats, rho: Floats) -> None:
        """The sharpest τ that is honest.

        Only the later half of the jobs counts: what was said early, knowing little, tells
        nothing of how good we are now.
        """
        self._seen += 1
        self._past = [*self._past[1 - MOST_PAST :], PastPredictions(alpha, beta, rho)]
        recent = self._past[-max(LEAST_PAST, (self._seen + 1) // 2) :]
        if len(recent) >= LEAST_PAST:
            self.tau = calibrated_tau(*map(np.concatenate, zip(*recent, strict=True)))

    def save(self) -> dict[str, Any]:
        return {
            "trust": self.weights.save(),
            "tau": self.tau,
            "held": [[column.tolist() for column in held] for held in self._past],
            "seen": self._seen,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.weights.load(saved["trust"])
        self.tau, self._seen = saved["tau"], int(saved["seen"])
        self._past = [PastPredictions(*map(np.array, held)) for held in saved["held"]]


def calibrated_tau(alpha: Floats, beta: Floats, rho: Floats) -> float:
    """The largest τ with which 90 % intervals of Be(τα, τβ) cover 90 % of ρ; else the best."""
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
    """The part of the points that lies in its 90 % interval."""
    from scipy.special import betainc

    below = betainc(alpha, beta, rho)
    return float(np.mean((below >= LOW) & (below <= HIGH)))
