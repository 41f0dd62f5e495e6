"""Whom to believe of how much is left: the start, the regression, or the kind.

Each was asked about every completed job before it was learned from. The geometric mean
of what they say, weighted by how wrong each has been of late: an opinion that errs by
factors counts for little, and nobody needs to know beforehand which one will.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.policies.ones.history import Floats
from ones.policies.ones.memory import Remembers

#: squared error of the logarithm, before anything is known: start, regression, kind
FIRST = (1.0, 1.0, 0.1)
#: jobs that this first guess counts for, and the most that the past does
GUESSES, MEMORY = 2.0, 30.0
#: nobody is trusted beyond an error of this (squared, of the logarithm)
LEAST_ERROR = 0.02


class EstimateWeights(Remembers):
    """In opinions about one quantity; one of them, NaN, may be missing."""

    memory: ClassVar[Mapping[str, Any]] = {
        "_error": np.ndarray,
        "_weight": np.ndarray,
    }

    def __init__(self) -> None:
        self._error = np.array(FIRST)
        self._weight = np.full(len(FIRST), GUESSES)

    def record_errors(self, done: Floats, estimates: Floats, truth: Floats) -> None:
        """`opinions` [who, point] of what was left of one job after so much: judged by the whole
        length that they amount to, since of a job that is nearly over any error is a large one."""
        errors = np.log((done + estimates) / (done + truth)) ** 2
        for source in range(len(errors)):
            known = errors[source][~np.isnan(errors[source])]
            if len(known):
                share = 1.0 / (self._weight[source] + 1.0)
                self._error[source] += share * (float(known.mean()) - self._error[source])
                self._weight[source] = min(self._weight[source] + 1.0, MEMORY)

    def combine(self, estimates: Floats, confidence: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Floats:
        """`ripeness` of each opinion, up to 1: a fit to a job or two says little."""
        known = ~np.isnan(estimates)
        weights = known * np.array(confidence)[:, None] / (self._error[:, None] + LEAST_ERROR) ** 2
        logs = np.where(known, np.log(np.where(known, estimates, 1.0)), 0.0)
        mixture: Floats = np.exp((weights * logs).sum(axis=0) / weights.sum(axis=0))
        return mixture
