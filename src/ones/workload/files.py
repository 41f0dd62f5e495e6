"""A workload from a file, whatever its format: told by what it looks like, not by its name."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from ones.core.events import CancelRequested
from ones.errors import InvalidFileError
from ones.runlog.files import RunLog
from ones.workload.csv_trace import read_trace
from ones.workload.observed import Lasts, to_trace, window, worth_keeping
from ones.workload.production import format_of, read_rows
from ones.workload.recorded import read_recording
from ones.workload.trace import Trace

OURS, LOG = "trace", "run log"


@dataclass(frozen=True, slots=True)
class Loaded:
    trace: Trace
    format: str
    left_out: int  # rows or jobs that could not be used


def load_workload(path: Path, lasts: Lasts, *, jobs: int | None = None, seed: int = 0) -> Loaded:
    """`jobs` takes so many: the first, or of a production trace those that the seed chooses."""
    kind = _kind(path)
    if kind == LOG:
        trace, left_out = read_recording(RunLog(path))
        return Loaded(_first(trace, jobs), kind, left_out)
    if kind == OURS:
        return Loaded(_first(read_trace(path), jobs), kind, 0)
    try:
        rows = list(read_rows(path, kind))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    kept = [row for row in rows if worth_keeping(row)]
    return Loaded(to_trace(path.name, window(kept, jobs, seed), lasts), kind, len(rows) - len(kept))


def _first(trace: Trace, jobs: int | None) -> Trace:
    if jobs is None:
        return trace
    kept = trace.jobs[:jobs]
    there = {entry.job.id for entry in kept}
    incidents = (i for i in trace.incidents if not isinstance(i, CancelRequested) or i.job in there)
    return Trace.of(trace.name, kept, incidents)


def _kind(path: Path) -> str:
    if path.exists() and not (path.is_file() or path.is_dir()):
        return OURS  # a pipe can be read only once, and so must be a trace of ours
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise InvalidFileError(path, "is not text in UTF-8") from problem
    if first.lstrip().startswith("{"):
        return LOG
    columns = [name.strip() for name in next(csv.reader([first]), [])]
    return format_of(columns) or OURS
