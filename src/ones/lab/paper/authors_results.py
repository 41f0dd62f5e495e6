"""The authors' results as distributions: from their files, or from the figures of the files."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError, short
from ones.lab.comparison.summary import WITHIN_SECONDS, percentile
from ones.lab.paper.authors_claims import AUTHORS, TRACE_NAME, AuthorsFigures

#: column of a file -> our name of the time
_COLUMNS = {
    "completion_time": "completion", "execution_time": "execution", "waiting_time": "queueing",
}  # fmt: skip
Times = Mapping[str, Sequence[float]]  # completion, execution, queueing


def check_directory(home: Path) -> Path:
    """The trace in the directory; raises if the directory does not hold the authors' files."""
    if not home.is_dir():
        problem = "is not a directory" if home.exists() else "does not exist"
        raise InvalidFileError(home, f"{problem}; --data needs the authors' data files")
    for name in (TRACE_NAME, *(figures.file for figures in AUTHORS.values())):
        if not (home / name).is_file():
            raise InvalidFileError(home / name, "is missing; --data needs the authors' data files")
    return home / TRACE_NAME


def read_results(home: Path) -> dict[str, Times]:
    """Our name of the scheduler -> times of its jobs."""
    return {name: _read(home / figures.file) for name, figures in AUTHORS.items()}


def _read(path: Path) -> Times:
    times: dict[str, list[float]] = {name: [] for name in _COLUMNS.values()}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            missing = sorted(set(_COLUMNS) - set(rows.fieldnames or ()))
            if missing:
                raise InvalidFileError(path, "the column is missing", line=1, field=missing[0])
            for row in rows:
                for column, name in _COLUMNS.items():
                    times[name].append(_seconds(row[column], path, rows.line_num, column))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InvalidFileError(path, f"is not CSV: {problem}") from problem
    if not times["completion"]:
        raise InvalidFileError(path, "holds no job")
    return times


def _seconds(cell: str | None, path: Path, line: int, column: str) -> float:
    try:
        seconds = float(cell or "")
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidFileError(
            path, f"{short(cell)} is not a number of seconds", line=line, field=column
        )
    return seconds


def row_of_times(times: Times) -> dict[str, Any]:
    """The keys of a row that are figures of job times."""
    done = times["completion"]
    return {
        "mean_jct": _mean(done),
        "mean_exec": _mean(times["execution"]),
        "mean_queue": _mean(times["queueing"]),
        "median_jct": percentile(done, 50.0),
        "p90_jct": percentile(done, 90.0),
        "max_jct": max(done, default=None),
        "within_200s": sum(t < WITHIN_SECONDS for t in done) / len(done) if done else None,
    }


def row_of_figures(figures: AuthorsFigures) -> dict[str, Any]:
    """The same keys, from the figures of a file."""
    done = figures.completion
    return {
        "mean_jct": done.mean,
        "mean_exec": figures.execution.mean,
        "mean_queue": figures.queueing.mean,
        "median_jct": done.median,
        "p90_jct": done.p90,
        "max_jct": done.longest,
        "within_200s": figures.within_200s,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
