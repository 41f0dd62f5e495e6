"""Loads a workload from a file; its format is recognised by its content."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from ones.core.events import CancelRequested
from ones.errors import InvalidFileError
from ones.runlog.files import RunLog
from ones.workload.artifact import is_artifact_trace, read_artifact_trace
from ones.workload.csv_trace import read_trace
from ones.workload.observed import Duration, is_usable, to_trace, window
from ones.workload.production import format_of, read_rows
from ones.workload.recorded import read_recording
from ones.workload.trace import Trace

TRACE, RUN_LOG, ARTIFACT = "trace", "run log", "trace of the paper's authors"


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    trace: Trace
    format: str
    left_out: int  # rows or jobs that could not be used


def load_workload(
    path: Path, duration: Duration, *, jobs: int | None = None, seed: int = 0
) -> LoadedWorkload:
    """`jobs`: how many to take: the first, or of a production trace a window by the seed."""
    kind = _kind(path)
    if kind == RUN_LOG:
        trace, left_out = read_recording(RunLog(path))
        return LoadedWorkload(_first(trace, jobs), kind, left_out)
    if kind == TRACE:
        return LoadedWorkload(_first(read_trace(path), jobs), kind, 0)
    if kind == ARTIFACT:
        return LoadedWorkload(_first(read_artifact_trace(path), jobs), kind, 0)
    try:
        rows = list(read_rows(path, kind))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    kept = [row for row in rows if is_usable(row)]
    return LoadedWorkload(
        to_trace(path.name, window(kept, jobs, seed), duration), kind, len(rows) - len(kept)
    )


def _first(trace: Trace, jobs: int | None) -> Trace:
    if jobs is None:
        return trace
    kept = trace.jobs[:jobs]
    there = {entry.job.id for entry in kept}
    incidents = (i for i in trace.incidents if not isinstance(i, CancelRequested) or i.job in there)
    return Trace.of(trace.name, kept, incidents)


def _kind(path: Path) -> str:
    if path.exists() and not (path.is_file() or path.is_dir()):
        return TRACE  # a pipe can be read once only: it must be a trace
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise InvalidFileError(path, "is not text in UTF-8") from problem
    if first.lstrip().startswith("{"):
        return RUN_LOG
    columns = [name.strip() for name in next(csv.reader([first]), [])]
    if is_artifact_trace(columns):
        return ARTIFACT
    return format_of(columns) or TRACE
