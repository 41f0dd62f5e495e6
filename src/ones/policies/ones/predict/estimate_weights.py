"""Weights of three estimates of the remaining work: cold start, regression, lengths of the kind.

Each estimate is compared with the real length of every completed job. The result is their geometric
mean, weighted by their recent errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.policies.ones.predict.history import Floats
from ones.policies.ones.predict.memory import Remembers

#: first squared errors of the logarithm: cold start, regression, kind
FIRST = (1.0, 1.0, 0.1)
#: weight of the first errors, in jobs, and the largest weight of past jobs
GUESSES, MEMORY = 2.0, 30.0
#: added to each squared error, so that no estimate gets all the weight
LEAST_ERROR = 0.02


class EstimateWeights(Remembers):
    """Errors and weights of the estimates; a missing estimate is NaN."""

    memory: ClassVar[Mapping[str, Any]] = {
        "_error": np.ndarray,
        "_weight": np.ndarray,
    }

    def __init__(self) -> None:
        self._error = np.array(FIRST)
        self._weight = np.full(len(FIRST), GUESSES)

    def record_errors(self, done: Floats, estimates: Floats, truth: Floats) -> None:
        """Adds the errors of the estimates [source, point] of a completed job's remaining work.

        Whole lengths are compared: near the end of a job, relative errors of the rest are large.
        """
        errors = np.log((done + estimates) / (done + truth)) ** 2
        for source in range(len(errors)):
            known = errors[source][~np.isnan(errors[source])]
            if len(known):
                share = 1.0 / (self._weight[source] + 1.0)
                self._error[source] += share * (float(known.mean()) - self._error[source])
                self._weight[source] = min(self._weight[source] + 1.0, MEMORY)

    def combine(self, estimates: Floats, confidence: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Floats:
        """Returns the weighted mean; `confidence` of each source, up to 1, scales its weight."""
        known = ~np.isnan(estimates)
        weights = known * np.array(confidence)[:, None] / (self._error[:, None] + LEAST_ERROR) ** 2
        logs = np.where(known, np.log(np.where(known, estimates, 1.0)), 0.0)
        mixture: Floats = np.exp((weights * logs).sum(axis=0) / weights.sum(axis=0))
        return mixture
