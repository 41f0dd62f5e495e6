"""What commands print: tables for people, JSON for scripts, progress for the patient.

Results go to standard output; everything else (progress, hints, errors) to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ones.core.state import State

JSON_HELP = "Print JSON instead of a table."


def out() -> Console:
    return Console(soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """A line beside the results."""
    err().print(text, markup=False)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Numbers to the right, words to the left."""
    rows = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for i, column in enumerate(columns):
        numeric = all(isinstance(row[i], int | float | None) for row in rows) and bool(rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console = out()
    if not sys.stdout.isatty():
        console = Console(width=max(100, 4 + sum(_width(table, i) for i in range(len(columns)))))
    console.print(table)


def _width(table: Table, index: int) -> int:
    column = table.columns[index]
    return 3 + max(len(str(cell)) for cell in (column.header, *column.cells))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


RESULT_COLUMNS: Mapping[str, str] = {
    "policy": "policy",
    "mechanism": "re-scaling",
    "mean_jct": "mean JCT s",
    "median_jct": "median s",
    "p95_jct": "p95 s",
    "p99_jct": "p99 s",
    "mean_exec": "running s",
    "mean_queue": "queueing s",
    "makespan": "makespan s",
    "utilization": "GPUs held %",
    "rescales": "re-scales",
    "preemptions": "preemptions",
    "finished": "finished",
}


def print_results(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    def value(row: Mapping[str, Any], key: str) -> object:
        if key == "utilization" and row[key] is not None:
            return round(100 * float(row[key]), 1)
        if key == "finished" and row["finished"] != row["jobs"]:
            return f"{row['finished']} of {row['jobs']}"
        return row[key]

    print_table(
        title,
        list(RESULT_COLUMNS.values()),
        [[value(row, key) for key in RESULT_COLUMNS] for row in rows],
    )


@contextmanager
def progress_of_jobs(what: str, jobs: int) -> Iterator[Callable[[State], None] | None]:
    """A bar on standard error that counts ended jobs; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err(), transient=True) as bar:
        task = bar.add_task(what, total=jobs)
        yield lambda state: bar.update(task, completed=len(state.ended))
