"""Runs of a comparison: which are missing, and their execution in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ones.lab.comparison.grid import Cell
from ones.lab.comparison.process_pool import run_all
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.time_estimates import TimeEstimator


@dataclass(frozen=True, slots=True)
class RunFailure:
    """A run that ended in an error; the other runs continue."""

    name: str
    message: str
    exit_code: int
    traceback: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, slots=True)
class RunProgress:
    done: int
    total: int
    seconds_left: float
    latest: str  # name of the run that has just finished


Watch = Callable[[RunProgress], None]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The requested runs, and those without a stored result (each once)."""

    cells: Sequence[Cell]
    missing: Sequence[Cell]
    seconds: float  # estimated time of the missing runs

    @classmethod
    def of(cls, cells: Sequence[Cell], store: ResultStore, processes: int) -> RunPlan:
        estimator = TimeEstimator.of(cells, store)
        missing: dict[str, Cell] = {}
        for cell in cells:
            if cell.key not in store:
                missing.setdefault(cell.key, cell)
        return cls(cells, list(missing.values()), estimator.total(missing.values(), processes))

    def __str__(self) -> str:
        runs = len({cell.key for cell in self.cells})
        stored = runs - len(self.missing)
        before = f", {stored:,} of them already stored" if stored else ""
        left = f": about {format_duration(self.seconds)}" if self.missing else ""
        return f"{runs:,} runs{before}{left}"


def run_missing(
    plan: RunPlan, store: ResultStore, processes: int, watch: Watch = lambda progress: None
) -> list[RunFailure]:
    """Executes the missing runs; each result is stored as soon as it exists."""
    estimator, failures = TimeEstimator.of(plan.cells, store), []
    left = {cell.key: cell for cell in plan.missing}
    work = [(cell, (cell.task, cell.spec)) for cell in plan.missing]
    total = len(work)
    for cell, result in run_all(work, processes):
        del left[cell.key]
        if "error" in result:
            failures.append(RunFailure(cell.name, **result["error"]))
        else:
            estimator.add(cell, result)
            store.add(cell.key, cell.name, result)
        seconds = estimator.total(left.values(), processes)
        watch(RunProgress(total - len(left), total, seconds, cell.name))
    return failures


def format_duration(seconds: float) -> str:
    """
    >>> format_duration(40), format_duration(400), format_duration(10_000)
    ('40 s', '7 min', '2.8 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
