"""The Gittins index of attained service, from a sample of lengths."""

from __future__ import annotations

from bisect import insort
from collections import deque

import numpy as np

SAMPLE = 1000  # number of lengths kept
LEAST_PART = 1e-9  # of a quantum: lower bound of the expected service


class GittinsIndex:
    """Probability to end within a quantum, per expected service, from the lengths seen so far.

    index(a) = Pr(S - a <= quantum | S > a) / E[min(S - a, quantum) | S > a]
    """

    def __init__(self, quantum: float, cells: int = 1) -> None:
        self.quantum, self.cells = quantum, cells
        self.seen: deque[float] = deque(maxlen=SAMPLE)
        self._sorted: list[float] = []
        self._known: dict[int, float] = {}  # cell -> index, for the current sample
        self._lengths = self._sums = np.zeros(1)

    def learn(self, length: float) -> None:
        if len(self.seen) == SAMPLE:
            self._sorted.remove(self.seen[0])
        self.seen.append(length)
        insort(self._sorted, length)
        self._lengths = np.array(self._sorted)
        self._sums = np.concatenate([[0.0], np.cumsum(self._lengths)])
        self._known = {}

    def cell(self, attained: float) -> int:
        """Attained service, rounded to the resolution of the index."""
        return min(int(attained * self.cells / self.quantum), 2**32 - 1)

    def of_cell(self, cell: int) -> float:
        if cell not in self._known:
            self._known[cell] = self.index(cell * self.quantum / self.cells)
        return self._known[cell]

    def index(self, attained: float) -> float:
        """The index; 0 beyond the longest length seen."""
        if not self.seen:
            return 0.0
        quantum, lengths, sums = self.quantum, self._lengths, self._sums
        shorter, soon = np.searchsorted(lengths, [attained, attained + quantum], side="right")
        if shorter == len(lengths):
            return 0.0
        ending = soon - shorter
        spent = sums[soon] - sums[shorter] - attained * ending + quantum * (len(lengths) - soon)
        return float(ending / max(spent, LEAST_PART * quantum))
