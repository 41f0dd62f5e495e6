"""Estimates of the time of runs: first by policy, then from finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ones.lab.comparison.grid import Cell
from ones.lab.comparison.result_store import ResultStore

#: seconds of a run of 50 jobs on 64 GPUs on one core, by label or policy; DEFAULT_SECONDS for the
#: others
POLICY_SECONDS = {
    "ones": 8.0, "ones-paper": 8.0, "pollux": 6.0, "pollux:15s": 12.0, "pollux:5s": 15.0,
    "sia": 5.0, "sia:15s": 8.0, "sia:5s": 12.0, "equi": 2.5,
}  # fmt: skip
DEFAULT_SECONDS = 1.0
_JOBS = 50.0


class TimeEstimator:
    """Estimates the seconds of a run from the most similar runs that have finished."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = {}

    @classmethod
    def of(cls, cells: Sequence[Cell], store: ResultStore) -> TimeEstimator:
        estimator = cls()
        for cell in cells:
            if cell.key in store:
                estimator.add(cell, store[cell.key])
        return estimator

    def add(self, cell: Cell, result: dict[str, Any]) -> None:
        seconds = result.get("row", result).get("wall_seconds")
        if seconds is not None:
            for key in _similarity_keys(cell):
                self._seconds.setdefault(key, []).append(seconds)

    def seconds(self, cell: Cell) -> float:
        for key in _similarity_keys(cell):
            if key in self._seconds:
                known = self._seconds[key]
                return sum(known) / len(known)
        policy = POLICY_SECONDS.get(cell.spec.policy, DEFAULT_SECONDS)
        usual = POLICY_SECONDS.get(cell.label, policy)
        return usual * (cell.spec.jobs or _JOBS) / _JOBS

    def total(self, cells: Iterable[Cell], processes: int) -> float:
        """Seconds until all cells are done."""
        each = [self.seconds(cell) for cell in cells]
        return max([*each, sum(each) / processes], default=0.0)


def _similarity_keys(cell: Cell) -> tuple[tuple[object, ...], ...]:
    """Keys of similar runs, from the most to the least similar."""
    spec = cell.spec
    size = (spec.gpus, spec.jobs, spec.workload, spec.load)
    return (
        (cell.task, cell.label, spec.mechanism, *size),
        (cell.task, cell.label, *size),
        (cell.task, cell.label, spec.jobs),
        (cell.task, spec.policy, spec.jobs),
    )
