"""Traces as CSV files: docs/reference/trace-format.md describes the columns.

Unknown columns, invalid values and duplicate jobs are errors with file, line, field and value.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from ones.core.cluster import NodeId
from ones.core.events import CancelRequested, NodeDown, NodeDraining, NodeUp
from ones.core.job import Job, JobId
from ones.errors import InvalidFileError, InvalidJobError, UnknownNameError, UserError, short
from ones.stopping import StopRule
from ones.workload.csv_columns import BY_NAME, COLUMNS, EVENTS, MAX_TEXT, NO_KIND, SUBMIT, YES_NO
from ones.workload.kinds import NUMBERS, numbers_of
from ones.workload.trace import Incident, RecordedTraining, Trace, TraceJob, Training


def read_trace(path: Path) -> Trace:
    try:
        # -sig: spreadsheets write a byte order mark
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _read(file, path)
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise InvalidFileError(path, "is not text in UTF-8") from problem


def _rows(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows with the number of their last line."""
    first = file.readline()  # no seek: the file may be a pipe
    if first.startswith("{"):
        raise InvalidFileError(path, "is JSON, as run logs are; a trace is CSV", line=1)
    rows = csv.reader(chain([first] if first else [], file), strict=True)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as problem:
        raise InvalidFileError(path, f"is not CSV: {problem}", line=rows.line_num) from problem


def _read(file: TextIO, path: Path) -> Trace:
    rows = _rows(file, path)
    names = _header(next(rows, (0, None))[1], path)
    jobs: dict[str, TraceJob] = {}
    incidents: list[Incident] = []
    lines: list[int] = []
    latest = -math.inf
    for line, row in rows:
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(names):
            raise InvalidFileError(path, f"{len(row)} values under {len(names)} columns", line=line)
        values = dict(_values(zip(names, row, strict=True), path, line))
        if values["at"] < latest:
            problem = f"{values['at']:g} is below {latest:g} of the row before; sort rows by time"
            raise InvalidFileError(path, problem, line=line, field="at")
        latest = values["at"]
        if values["event"] != SUBMIT:
            incidents.append(_incident(values, path, line))
            lines.append(line)
            continue
        entry = _job(values, path, line)
        if entry.job.id in jobs:
            raise InvalidFileError(path, f"{entry.job.id!r} appears twice", line=line, field="id")
        jobs[entry.job.id] = entry
    if not jobs:
        raise InvalidFileError(path, "holds no job")
    return replace(Trace.of(path.name, jobs.values(), incidents), incident_lines=tuple(lines))


def _header(header: list[str] | None, path: Path) -> list[str]:
    if header is None:
        raise InvalidFileError(path, "is empty: a trace begins with a header")
    names = [name.strip() for name in header]
    for name in names:
        if name not in BY_NAME:
            raise InvalidFileError(path, str(UnknownNameError("column", name, BY_NAME)), line=1)
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InvalidFileError(path, "appears twice", line=1, field=twice)
    if "at" not in names:
        raise InvalidFileError(path, "the column is missing", line=1, field="at")
    return names


def _values(cells: Iterable[tuple[str, str]], path: Path, line: int) -> Iterator[tuple[str, Any]]:
    given = {name: cell.strip() for name, cell in cells}
    for column in COLUMNS:
        cell = given.get(column.name, "")
        if not cell and column.name != "at":
            yield column.name, column.default
            continue
        problem = ""
        try:
            value = column.parse(cell)
        except ValueError:
            problem = f"{cell!r} is not {column.holds}" if cell else "is missing"
        else:
            if column.least is not None and value < column.least:
                problem = f"{cell} is not at least {column.least}"
            elif isinstance(value, str) and len(value) > MAX_TEXT:
                problem = f"{short(value)} is longer than {MAX_TEXT} characters"
            elif isinstance(value, int | float) and abs(value) > column.most:
                problem = f"{short(cell)} is not within {column.most:g}"
        if problem:
            raise InvalidFileError(path, problem, line=line, field=column.name)
        yield column.name, value


def _incident(values: dict[str, Any], path: Path, line: int) -> Incident:
    event, at = values["event"], values["at"]
    if event not in EVENTS:
        raise InvalidFileError(
            path, str(UnknownNameError("event", event, EVENTS)), line=line, field="event"
        )
    needs = "id" if event == "cancel" else "node"
    if not values[needs]:
        raise InvalidFileError(path, f"is missing for {event}", line=line, field=needs)
    node = NodeId(values["node"])
    if event == "cancel":
        return CancelRequested(at, JobId(values["id"]), "the trace")
    if event == "node-up":
        return NodeUp(at, node, values["gpus"])
    return NodeDown(at, node) if event == "node-down" else NodeDraining(at, node)


def _job(values: dict[str, Any], path: Path, line: int) -> TraceJob:
    for name in ("id", "model"):
        if not values[name]:
            raise InvalidFileError(path, "is missing", line=line, field=name)
    if values["numbers"] not in NUMBERS:
        problem = str(UnknownNameError("set of numbers", values["numbers"], NUMBERS))
        raise InvalidFileError(path, problem, line=line, field="numbers")
    try:
        kind = numbers_of(values["numbers"]).kind(values["model"])
    except UnknownNameError as problem:
        raise InvalidFileError(path, str(problem), line=line, field="model") from problem
    base = values["base_batch"] or int(kind.base_batch)
    target = values["target_accuracy"]
    if target is None and values["epochs"] is None:
        target = kind.target_accuracy
    # a joint rule ends a job also if its target is never reached
    if target is not None and target >= kind.accuracy_limit and values["joint"] == "no":
        raise InvalidFileError(
            path,
            f"{target} is never reached: {kind.name} ends at {kind.accuracy_limit}",
            line=line,
            field="target_accuracy",
        )
    try:
        job = Job(
            id=JobId(values["id"]),
            submitted_at=values["at"],
            kind="" if values["kind"] == NO_KIND else values["kind"] or kind.name,
            owner=values["owner"],
            priority=values["priority"],
            min_gpus=values["min_gpus"],
            max_gpus=values["max_gpus"],
            requested_gpus=values["gpus"],
            requested_batch=values["batch"] or base * values["gpus"],
            min_batch=values["min_batch"],
            deadline=values["deadline"] or None,
            max_batch=values["max_batch"],
            epochs=values["epochs"],
            stop=StopRule(
                target_accuracy=target,
                target_epochs=values["target_epochs"],
                patience=values["patience"],
                max_epochs=values["max_epochs"] or values["epochs"],
                joint=values["joint"] == "yes",
                min_gain=values["min_gain"],
            ),
        )
        training = Training(
            kind=kind.name,
            dataset_size=values["dataset_size"] or kind.sizes[len(kind.sizes) // 2],
            classes=values["classes"],
            base_batch=base,
            length=values["length"],
            rate_follows=values["rate_follows"] == "yes",
            dies_after=values["dies_after"],
            killed=values["killed"] == "yes",
            numbers=values["numbers"],
            run=values["run"],
        )
    except (InvalidJobError, ValueError) as problem:
        raise InvalidFileError(path, str(problem), line=line) from problem
    return TraceJob(job, training, line)


def write_trace(trace: Trace, file: TextIO) -> None:
    """Writes the columns that at least one row uses."""
    rows = [_job_row(entry) for entry in trace.jobs] + [_incident_row(i) for i in trace.incidents]
    rows.sort(key=lambda row: row["at"])
    used = [
        column.name
        for column in COLUMNS
        if column.name == "at"
        or any(row.get(column.name, column.default) not in (column.default, None) for row in rows)
    ]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(used)
    for row in rows:
        cells = (row.get(name, BY_NAME[name].default) for name in used)
        writer.writerow(["" if cell is None else cell for cell in cells])


def _job_row(entry: TraceJob) -> dict[str, Any]:
    job, training = entry.job, entry.training
    if isinstance(training, RecordedTraining):
        raise UserError(f"job {job.id} was read from a run log: it cannot be written as CSV")
    return {
        "at": job.submitted_at,
        "id": job.id,
        "owner": job.owner,
        "model": training.kind,
        "kind": None if job.kind == training.kind else job.kind or NO_KIND,
        "dataset_size": training.dataset_size,
        "classes": training.classes,
        "base_batch": training.base_batch,
        "gpus": job.requested_gpus,
        "batch": job.requested_batch,
        "min_batch": job.min_batch,
        "deadline": job.deadline,
        "max_batch": job.max_batch,
        "min_gpus": job.min_gpus,
        "max_gpus": job.max_gpus,
        "priority": job.priority,
        "epochs": job.epochs,
        "max_epochs": None if job.stop.max_epochs == job.epochs else job.stop.max_epochs,
        "target_accuracy": job.stop.target_accuracy,
        "target_epochs": job.stop.target_epochs,
        "patience": job.stop.patience,
        "joint": YES_NO[job.stop.joint],
        "min_gain": job.stop.min_gain,
        "length": training.length,
        "rate_follows": YES_NO[training.rate_follows],
        "dies_after": training.dies_after,
        "killed": YES_NO[training.killed],
        "numbers": training.numbers,
        "run": training.run,
    }


def _incident_row(incident: Incident) -> dict[str, Any]:
    match incident:
        case CancelRequested():
            return {"event": "cancel", "at": incident.at, "id": incident.job}
        case NodeDown():
            return {"event": "node-down", "at": incident.at, "node": incident.node}
        case NodeDraining():
            return {"event": "node-drain", "at": incident.at, "node": incident.node}
        case NodeUp():
            fields = {"event": "node-up", "at": incident.at, "node": incident.node}
            return {**fields, "gpus": incident.gpus}
