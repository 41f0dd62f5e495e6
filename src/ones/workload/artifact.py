"""The workload of the paper's authors: a generator, and a reader of their trace.

20 types of job arrive with gaps of 0 to 60 whole seconds. A job asks for 2 to 16 GPUs with a fixed
batch for each, up to a largest global batch, and ends by the joint stop rule.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ones.core.job import Job, JobId
from ones.errors import InvalidFileError, InvalidJobError, InvalidSettingError, short
from ones.stopping import StopRule
from ones.workload.generate import MOST_EPOCHS
from ones.workload.kinds import numbers_of
from ones.workload.recorded_types import MIN_GAIN, RecordedType
from ones.workload.trace import Trace, TraceJob, Training

NUMBERS = "artifact"
MOST_GAP = 60  # seconds
ROWS = 400  # of the authors' trace: all types equally often, shuffled
_MODELS = {"inception_v3": "inceptionv3"}  # the authors' name -> ours
_DATASETS = {"cifar": "cifar10"}


class _Request(NamedTuple):
    gpus: int
    base_batch: int  # of one GPU
    max_batch: int
    target: float
    patience: int


class _Column(NamedTuple):
    parse: Callable[[str], float]
    holds: str
    least: float
    most: float


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


#: columns of the authors' trace that hold numbers
_NUMBERS = {
    "time": _Column(_number, "a number", 0, 1e12),
    "epoch_size": _Column(int, "a whole number", 1, 1e12),
    "patience": _Column(int, "a whole number", 1, 1e6),
    "batch_size": _Column(int, "a whole number", 1, 1e9),
    "lr": _Column(_number, "a number", 1e-30, 1e6),
    "max_lr": _Column(_number, "a number", 1e-30, 1e6),
    "target_acc": _Column(_number, "a number", 0, 1),
    "num_gpus": _Column(int, "a whole number", 1, 2**20),
}
COLUMNS = frozenset(_NUMBERS) | {"model", "task"}


def generate_artifact(*, jobs: int, seed: int) -> Trace:
    """Jobs like those of the authors' trace."""
    if jobs < 1:
        raise InvalidSettingError(f"jobs: {jobs} is not at least 1")
    if seed < 0:
        raise InvalidSettingError(f"seed: {seed} is negative")
    types = numbers_of(NUMBERS).types
    rng = np.random.default_rng([seed, 0xA47])
    repeats = -(-max(jobs, ROWS) // len(types))
    order = rng.permutation(repeats * len(types))[:jobs] % len(types)
    gaps = rng.integers(0, MOST_GAP, jobs, endpoint=True)
    gaps[0] = 0
    arrivals = np.cumsum(gaps)
    width = len(str(jobs - 1))
    entries = [
        _entry(f"j{n:0{width}d}", float(arrivals[n]), types[order[n]], _usual(types[order[n]]))
        for n in range(jobs)
    ]
    return Trace.of(f"paper-artifact seed {seed}", entries)


def _usual(recorded: RecordedType) -> _Request:
    """The request of a type in the authors' trace."""
    kind = numbers_of(NUMBERS).kind(recorded.kind)
    assert kind.request_gpus is not None
    assert kind.max_batch is not None
    return _Request(
        gpus=int(kind.request_gpus),
        base_batch=int(kind.base_batch),
        max_batch=int(kind.max_batch),
        target=kind.target_accuracy,
        patience=int(kind.stop_epochs),
    )


def is_artifact_trace(columns: list[str]) -> bool:
    return set(columns) >= COLUMNS


def read_artifact_trace(path: Path) -> Trace:
    """The jobs of the authors' trace; raises with file, line, field and value."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            entries = list(_entries(csv.DictReader(file, strict=True), path))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise InvalidFileError(path, "is not text in UTF-8") from problem
    except csv.Error as problem:
        raise InvalidFileError(path, f"is not CSV: {problem}") from problem
    if not entries:
        raise InvalidFileError(path, "holds no job")
    return Trace.of(path.name, entries)


def _entries(rows: csv.DictReader[str], path: Path) -> Iterator[TraceJob]:
    rows.fieldnames = [name.strip() for name in rows.fieldnames or []]
    missing = sorted(COLUMNS - set(rows.fieldnames))
    if missing:
        raise InvalidFileError(path, "the column is missing", line=1, field=missing[0])
    latest = 0.0
    seen: Counter[str] = Counter()
    for number, row in enumerate(rows):
        line = rows.line_num
        if None in row or any(value is None for value in row.values()):
            raise InvalidFileError(
                path, f"not {len(rows.fieldnames)} values, as there are columns", line=line
            )
        values = {name: _value(row[name], name, path, line) for name in _NUMBERS}
        at = values["time"]
        if at < latest:
            problem = f"{at:g} is below {latest:g} of the row before; sort rows by time"
            raise InvalidFileError(path, problem, line=line, field="time")
        latest = at
        if values["max_lr"] < values["lr"]:
            problem = f"{values['max_lr']:g} is below lr {values['lr']:g}"
            raise InvalidFileError(path, problem, line=line, field="max_lr")
        runs = _runs(row, int(values["epoch_size"]), path, line)
        base = int(values["batch_size"])
        request = _Request(
            gpus=int(values["num_gpus"]),
            base_batch=base,
            max_batch=round(base * values["max_lr"] / values["lr"]),
            target=values["target_acc"],
            patience=int(values["patience"]),
        )
        recorded = runs[seen[runs[0].kind] % len(runs)]
        seen[runs[0].kind] += 1
        try:
            yield _entry(f"j{number:03d}", at, recorded, request, line)
        except (InvalidJobError, ValueError) as problem:
            raise InvalidFileError(path, str(problem), line=line) from problem


def _value(cell: str, name: str, path: Path, line: int) -> float:
    column = _NUMBERS[name]
    try:
        value = column.parse(cell.strip())
    except ValueError:
        problem = f"{short(cell)} is not {column.holds}"
        raise InvalidFileError(path, problem, line=line, field=name) from None
    if not column.least <= value <= column.most:
        problem = f"{short(cell)} is not in {column.least:g}..{column.most:g}"
        raise InvalidFileError(path, problem, line=line, field=name)
    return value


def _runs(row: dict[str, str], size: int, path: Path, line: int) -> list[RecordedType]:
    """The recorded runs of the kind and size of a row."""
    numbers = numbers_of(NUMBERS)
    model, task = row["model"].strip(), row["task"].strip()
    kind = f"{_MODELS.get(model, model)}-{_DATASETS.get(task, task)}"
    sizes = sorted({known.dataset_size for known in numbers.types if known.kind == kind})
    if not sizes:
        problem = f"{short(model)} on {short(task)} is not a known kind of job"
        raise InvalidFileError(path, problem, line=line, field="model")
    if size not in sizes:
        problem = f"{size} is not a known size of {kind}: {', '.join(map(str, sizes))}"
        raise InvalidFileError(path, problem, line=line, field="epoch_size")
    return numbers.recorded(kind, size)


def _entry(
    name: str, at: float, recorded: RecordedType, request: _Request, line: int | None = None
) -> TraceJob:
    return TraceJob(
        Job(
            id=JobId(name),
            submitted_at=at,
            kind=recorded.kind,
            requested_gpus=request.gpus,
            requested_batch=request.base_batch * request.gpus,
            max_batch=request.max_batch,
            stop=StopRule(
                target_accuracy=request.target,
                patience=request.patience,
                max_epochs=MOST_EPOCHS,
                joint=True,
                min_gain=MIN_GAIN,
            ),
        ),
        Training(
            kind=recorded.kind,
            dataset_size=recorded.dataset_size,
            classes=recorded.classes,
            base_batch=request.base_batch,
            numbers=NUMBERS,
            run=recorded.run,
        ),
        line,
    )
