"""How long it will take: guesses at first, then what finished runs took."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ones.lab.grid import Cell

#: seconds of a run of 50 jobs on 64 GPUs, on a core of 2020; others take a second or two
GUESSES = {
    "ones": 10.0, "ones-paper": 6.0, "pollux": 45.0, "sia": 15.0, "drl": 10.0, "optimus": 5.0,
}  # fmt: skip
GUESS = 2.0
_JOBS = 50.0


class Pace:
    """Seconds of a run, by what is most alike among those that have finished."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], list[float]] = {}

    def saw(self, cell: Cell, result: dict[str, Any]) -> None:
        seconds = result.get("row", result).get("wall_seconds")
        if seconds is not None:
            for alike in _likeness(cell):
                self._seen.setdefault(alike, []).append(seconds)

    def seconds(self, cell: Cell) -> float:
        for alike in _likeness(cell):
            if alike in self._seen:
                seen = self._seen[alike]
                return sum(seen) / len(seen)
        return GUESSES.get(cell.spec.policy, GUESS) * (cell.spec.jobs or _JOBS) / _JOBS

    def total(self, cells: Iterable[Cell], processes: int) -> float:
        """Seconds until all of them are done."""
        each = [self.seconds(cell) for cell in cells]
        return max([*each, sum(each) / processes], default=0.0)


def _likeness(cell: Cell) -> tuple[tuple[object, ...], ...]:
    spec = cell.spec
    size = (spec.gpus, spec.jobs, spec.workload, spec.load)
    return (
        (cell.task, cell.label, spec.mechanism, *size),
        (cell.task, cell.label, *size),
        (cell.task, cell.label, spec.jobs),
        (cell.task, spec.policy, spec.jobs),
    )
