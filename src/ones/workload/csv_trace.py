"""Traces as CSV files: docs/reference/trace-format.md describes the columns.

Unknown columns, invalid values and duplicate jobs are errors with file, line, field and value.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from ones.core.cluster import NodeId
from ones.core.events import CancelRequested, NodeDown, NodeDraining, NodeUp
from ones.core.job import Job, JobId
from ones.errors import InvalidFileError, InvalidJobError, UnknownNameError, UserError, short
from ones.stopping import StopRule
from ones.workload.kinds import paper_numbers
from ones.workload.trace import Incident, RecordedTraining, Trace, TraceJob, Training


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    least: int | None = None
    most: float = 10**12  # of the absolute value

    @property
    def holds(self) -> str:
        """The type of its values, in words."""
        return _TYPE_NAMES[self.parse]


def _text(value: str) -> str:
    return value


_YES_NO = {True: "yes", False: "no"}


def _yes_no(value: str) -> str:
    if value not in _YES_NO.values():
        raise ValueError(value)
    return value


def _number(value: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


SUBMIT = "submit"
MAX_TEXT = 300
EVENTS = (SUBMIT, "cancel", "node-down", "node-drain", "node-up")

_TYPE_NAMES: dict[object, str] = {
    int: "a whole number",
    _number: "a number",
    _text: "a text",
    _yes_no: "yes or no",
}

COLUMNS: tuple[Column, ...] = (
    Column("event", _text, SUBMIT, f"what happens: {', '.join(EVENTS)}"),
    Column("at", _number, None, "when, in seconds from the start of the trace; required", 0),
    Column("id", _text, "", "the job; required for submit and cancel"),
    Column("owner", _text, "", "who asks"),
    Column(
        "model",
        _text,
        "",
        "a kind of the data file (`ones trace physics` lists them); required for submit",
    ),
    Column("kind", _text, None, "what schedulers see as its kind; default: the model"),
    Column("dataset_size", int, None, "samples of an epoch; default: the model's middle size", 1),
    Column("classes", int, 10, "classes of the data set: the loss begins at their logarithm", 1),
    Column("base_batch", int, None, "the script's own batch; default: the model's", 1),
    Column("gpus", int, 1, "requested GPUs; for node-up: the GPUs of the node", 1, 2**20),
    Column("batch", int, None, "requested global batch; default: base_batch x gpus", 1),
    Column("min_gpus", int, 1, "fewest GPUs it can run on", 1, 2**20),
    Column("max_gpus", int, None, "most GPUs it may have", 1, 2**20),
    Column("priority", _number, 0.0, "higher goes first", most=math.inf),
    Column("epochs", int, None, "the script's own number of epochs", 1),
    Column("max_epochs", int, None, "stop after so many epochs; default: epochs", 1),
    Column(
        "target_accuracy",
        _number,
        None,
        "stop when it is exceeded; default: the model's, unless epochs is given",
    ),
    Column("target_epochs", int, 10, "... for so many epochs in a row", 1),
    Column("patience", int, None, "stop after so many epochs without improvement", 1),
    Column("length", _number, 1.0, "factor on the epochs that the model needs"),
    Column("rate_follows", _yes_no, "yes", "no: the learning rate stays when the batch grows"),
    Column("dies_after", _number, None, "epochs after which the job fails"),
    Column("killed", _yes_no, "no", "yes: it does not fail then, but is killed"),
    Column("node", _text, "", "for node events: its name"),
)
_BY_NAME = {column.name: column for column in COLUMNS}


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
            raise InvalidFileError(
                path, f"{values['at']:g} comes after {latest:g}: rows go by time", line=line,
                field="at",
            )  # fmt: skip
        latest = values["at"]
        if values["event"] != SUBMIT:
            incidents.append(_incident(values, path, line))
            lines.append(line)
            continue
        entry = _job(values, path, line)
        if entry.job.id in jobs:
            raise InvalidFileError(path, f"{entry.job.id!r} is there twice", line=line, field="id")
        jobs[entry.job.id] = entry
    if not jobs:
        raise InvalidFileError(path, "holds no job")
    return replace(Trace.of(path.name, jobs.values(), incidents), incident_lines=tuple(lines))


def _header(header: list[str] | None, path: Path) -> list[str]:
    if header is None:
        raise InvalidFileError(path, "is empty: a trace begins with a header")
    names = [name.strip() for name in header]
    for name in names:
        if name not in _BY_NAME:
            raise InvalidFileError(path, str(UnknownNameError("column", name, _BY_NAME)), line=1)
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InvalidFileError(path, "is there twice", line=1, field=twice)
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
    try:
        kind = paper_numbers().kind(values["model"])
    except UnknownNameError as problem:
        raise InvalidFileError(path, str(problem), line=line, field="model") from problem
    base = values["base_batch"] or int(kind.base_batch)
    target = values["target_accuracy"]
    if target is None and values["epochs"] is None:
        target = kind.target_accuracy
    if target is not None and target >= kind.accuracy_limit:
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
            kind=values["kind"] or kind.name,
            owner=values["owner"],
            priority=values["priority"],
            min_gpus=values["min_gpus"],
            max_gpus=values["max_gpus"],
            requested_gpus=values["gpus"],
            requested_batch=values["batch"] or base * values["gpus"],
            epochs=values["epochs"],
            stop=StopRule(
                target_accuracy=target,
                target_epochs=values["target_epochs"],
                patience=values["patience"],
                max_epochs=values["max_epochs"] or values["epochs"],
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
        cells = (row.get(name, _BY_NAME[name].default) for name in used)
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
        "kind": None if job.kind == training.kind else job.kind,
        "dataset_size": training.dataset_size,
        "classes": training.classes,
        "base_batch": training.base_batch,
        "gpus": job.requested_gpus,
        "batch": job.requested_batch,
        "min_gpus": job.min_gpus,
        "max_gpus": job.max_gpus,
        "priority": job.priority,
        "epochs": job.epochs,
        "max_epochs": None if job.stop.max_epochs == job.epochs else job.stop.max_epochs,
        "target_accuracy": job.stop.target_accuracy,
        "target_epochs": job.stop.target_epochs,
        "patience": job.stop.patience,
        "length": training.length,
        "rate_follows": _YES_NO[training.rate_follows],
        "dies_after": training.dies_after,
        "killed": _YES_NO[training.killed],
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
