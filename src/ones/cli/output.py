"""Output of commands: tables for people, JSON for scripts, progress bars.

Results go to standard output; everything else (progress, hints, errors) to standard error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ones.cli.terminal import visible
from ones.core.state import State
from ones.errors import OnesError


class InterruptedRunError(OnesError):
    """Ctrl-C; the message says what was kept."""

    exit_code = 130


def out() -> Console:
    return Console(soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a line on standard error, beside the results."""
    err().print(visible(text, keep="\n\t"), markup=False)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Print a table; numbers are right-aligned, text is left-aligned."""
    rows = [list(row) for row in rows]
    table = Table(header_style="bold")
    for i, column in enumerate(columns):
        numeric = all(isinstance(row[i], int | float | None) for row in rows) and bool(rows)
        table.add_column(
            Text(visible(column)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        # as Text: a command or a reason may look like markup or have control characters
        table.add_row(*(Text(visible(_cell(value), keep="\n")) for value in row))
    console = out()
    if not sys.stdout.isatty():
        console = Console(width=max(100, 4 + sum(_width(table, i) for i in range(len(columns)))))
    _print_titled(console, title, table)


def _print_titled(console: Console, title: str | None, table: Table) -> None:
    """Print title and table. rich would wrap a title of the table at the table's width."""
    if title is not None:
        console.print(visible(title), style="bold", markup=False, highlight=False, soft_wrap=True)
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


RESULT_ROWS: Mapping[str, str] = {
    "mechanism": "rescaling",
    "mean_jct": "mean completion s",
    "median_jct": "median s",
    "p95_jct": "95 % within s",
    "p99_jct": "99 % within s",
    "mean_exec": "mean running s",
    "mean_queue": "mean queueing s",
    "makespan": "last job done after s",
    "utilization": "GPUs held %",
    "rescales": "rescales",
    "rescale_rate": "rescales per job and hour",
    "preemptions": "preemptions",
    "finished": "jobs finished",
}


def print_results(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one column per run, so that a table of few runs fits a narrow terminal."""

    def value(row: Mapping[str, Any], key: str) -> object:
        if key == "utilization" and row[key] is not None:
            return round(100 * float(row[key]), 1)
        if key == "finished":
            return f"{row['finished']:,} of {row['jobs']:,}"
        return row[key]

    table = Table(header_style="bold")
    table.add_column("")
    for row in rows:
        table.add_column(str(row["policy"]), justify="right")
    for key, label in RESULT_ROWS.items():
        table.add_row(label, *(_cell(value(row, key)) for row in rows))
    _print_titled(out(), title, table)


@contextmanager
def progress_of_jobs(what: str, jobs: int) -> Iterator[Callable[[State], None] | None]:
    """A bar on standard error that counts ended jobs; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err(), transient=True) as bar:
        task = bar.add_task(what, total=jobs)
        yield lambda state: bar.update(task, completed=len(state.ended))


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error with a number done of a total, which may be 0 at first; nothing
    without a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


#: interval of progress lines without a terminal
SECONDS_BETWEEN_LINES = 60.0


@contextmanager
def progress_of_runs(what: str, runs: int) -> Iterator[Callable[[Any], None]]:
    """A bar on standard error with the expected time left."""
    if not runs or not sys.stderr.isatty():
        yield _Lines(what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TextColumn("{task.fields[left]}"), console=err(), transient=True
    ) as bar:
        task = bar.add_task(what, total=runs, left="")

        def watch(progress: Any) -> None:  # noqa: ANN401
            left = f"about {_duration(progress.seconds_left)} left; {progress.latest} done"
            bar.update(task, completed=progress.done, left=left)

        yield watch


class _Lines:
    def __init__(self, what: str) -> None:
        self._what = what
        self._printed_at = time.monotonic()

    def __call__(self, progress: Any) -> None:  # noqa: ANN401
        now = time.monotonic()
        if now - self._printed_at >= SECONDS_BETWEEN_LINES:
            self._printed_at = now
            left = _duration(progress.seconds_left)
            say(f"{self._what}: {progress.done} of {progress.total} runs, about {left} left")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
