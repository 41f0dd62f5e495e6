"""Runs that a command plans, shows with their progress, and continues after an interruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ones.cli.output import InterruptedRunError, progress_of_runs, say

if TYPE_CHECKING:
    from ones.lab.comparison.execution import RunFailure
    from ones.lab.comparison.grid import Cell
    from ones.lab.comparison.result_store import ResultStore


class FinishedRuns(NamedTuple):
    home: Path
    store: ResultStore
    failures: Sequence[RunFailure]


@contextmanager
def planned_runs(
    cells: Sequence[Cell], out: Path, processes: int | None, title: str
) -> Iterator[FinishedRuns]:
    """Executes the runs of the cells that `out` does not hold yet, and locks `out` meanwhile."""
    from ones.lab.comparison.execution import RunPlan
    from ones.lab.comparison.process_pool import available_cores
    from ones.lab.comparison.result_store import ResultStore, locked
    from ones.lab.paper.evaluation import planned_runner

    at_once = processes or available_cores()
    with locked(out) as home:
        store = ResultStore(home)
        plan = RunPlan.of(cells, store, at_once)
        say(f"plan: {plan} on {at_once} processes; kept in {home} as they finish")
        run_planned = planned_runner(store, at_once, partial(progress_of_runs, title))
        try:
            failures = run_planned(plan)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted; {len(store):,} finished runs are in {home};"
                " run the same command to continue"
            ) from None
        yield FinishedRuns(home, store, failures)
