"""Corrects the gradient noise that jobs report, by the lengths of completed jobs.

Counted in effective samples, jobs of one kind should be about equally long, whatever batches they
ran with. The measured noise scale predicts the useful batch only within an order of magnitude
(McCandlish et al., arXiv 1812.06162). So each job is counted under several factors of its reported
noise; the factor under which the lengths of a kind differ least is used for all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.models.goodput import efficiencies

Floats = NDArray[np.float64]

#: factors that are compared
FACTORS: Floats = 2.0 ** np.arange(-3.0, 6.0)
#: standard deviation, in doublings, of the factor that is expected before jobs have completed
EXPECTED_DOUBLINGS = 2.0
#: degrees of freedom from which on the lengths are used
LEAST_FREEDOM = 5
#: last completed jobs that count, of each kind
JOBS_OF_A_KIND = 30


def efficiencies_of(batch: int, base: int, noise: float) -> Floats:
    """The efficiency of a batch under each factor of the noise."""
    return efficiencies(batch, base, FACTORS * noise)


class NoiseCalibration:
    """
    >>> calibration = NoiseCalibration()
    >>> calibration.factor
    1.0
    >>> for batch in (64, 64, 256, 256, 64, 256, 64, 256):  # the efficiency is 1 for both
    ...     calibration.completed("cnn", 1000.0 * efficiencies_of(batch, 64, 16.0))
    >>> calibration.factor
    32.0
    """

    def __init__(self) -> None:
        self._lengths: dict[str, list[Floats]] = {}  # logarithms, by kind
        self._squares: dict[str, Floats] = {}  # squared deviations from their mean, by kind
        self.index = self._best()  # of the factor in use

    @property
    def factor(self) -> float:
        return float(FACTORS[self.index])

    def completed(self, kind: str, lengths: Floats) -> None:
        """`lengths`: effective samples of a job under each factor."""
        if kind and lengths.min() > 0.0:
            known = [*self._lengths.get(kind, ())[1 - JOBS_OF_A_KIND :], np.log(lengths)]
            set_bounded(self._lengths, kind, known, MAX_KINDS)
            set_bounded(self._squares, kind, _squares(known), MAX_KINDS)
            self.index = self._best()

    def _best(self) -> int:
        """The factor of the highest posterior density: lognormal lengths, lognormal prior."""
        unlikely = 0.5 * (np.log2(FACTORS) / EXPECTED_DOUBLINGS) ** 2
        freedom = sum(len(lengths) - 1 for lengths in self._lengths.values())
        if freedom >= LEAST_FREEDOM:
            squares = np.sum(list(self._squares.values()), axis=0)
            unlikely = unlikely + 0.5 * freedom * np.log(np.maximum(squares, 1e-9))
        return int(np.argmin(unlikely))

    def save(self) -> dict[str, Any]:
        return {kind: [row.tolist() for row in rows] for kind, rows in self._lengths.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._lengths = {kind: [np.array(row) for row in rows] for kind, rows in saved.items()}
        self._squares = {kind: _squares(rows) for kind, rows in self._lengths.items()}
        self.index = self._best()


def _squares(logs: list[Floats]) -> Floats:
    squares: Floats = ((np.array(logs) - np.mean(logs, axis=0)) ** 2).sum(axis=0)
    return squares
