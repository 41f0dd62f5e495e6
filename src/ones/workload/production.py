"""Readers of public production traces: Philly, Alibaba 2023, and Pollux's workloads.

Rows that are no training job (no GPU, never started) are skipped; malformed rows are errors with
file, line, field and value.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from ones.errors import InvalidFileError, UnknownNameError, short
from ones.workload.observed import ObservedJob

Row = dict[str, str]


class _Cells:
    """The cells of one line. Errors name file, line and field."""

    def __init__(self, path: Path, line: int, row: Row) -> None:
        self._path, self._line, self._row = path, line, row

    def text(self, field: str) -> str:
        return (self._row.get(field) or "").strip()

    def number(self, field: str, *, least: float = 0.0, most: float = 1e12) -> float:
        text = self.text(field)
        try:
            number = float(text)
        except ValueError:
            raise self.error(field, f"{text!r} is not a number") from None
        if not isfinite(number):
            raise self.error(field, f"{text!r} is not a finite number")
        if number < least:
            raise self.error(field, f"{text} is less than {least:g}")
        if number > most:
            raise self.error(field, f"{short(text)} is more than {most:g}")
        return number

    def integer(self, field: str, *, least: int = 0) -> int:
        number = self.number(field, least=least, most=2**20)  # of GPUs
        if number != int(number):
            raise self.error(field, f"{self.text(field)} is not a whole number")
        return int(number)

    def error(self, field: str, problem: str) -> InvalidFileError:
        return InvalidFileError(self._path, problem, line=self._line, field=field)


def _philly(cells: _Cells, number: int) -> ObservedJob | None:
    """Microsoft's Philly, as condensed by the authors of Pollux, without a status.

    Columns: timestamp, duration, num_gpus, gpu_time, cluster.
    """
    text = cells.text("timestamp")
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise cells.error("timestamp", f"{text!r} is not a date and time") from None
    return ObservedJob(
        name=f"philly-{number}",
        at=moment.timestamp(),
        seconds=cells.number("duration"),
        gpus=cells.integer("num_gpus", least=1),
        owner=cells.text("cluster"),
    )


def _alibaba(cells: _Cells, number: int) -> ObservedJob | None:
    """Pods of Alibaba's GPU cluster, 2023. A fraction of a GPU counts as one."""
    gpus = cells.integer("num_gpu")
    if gpus == 0 or not cells.text("scheduled_time") or not cells.text("deletion_time"):
        return None
    begun, ended = cells.number("scheduled_time"), cells.number("deletion_time")
    if ended < begun:
        raise cells.error("deletion_time", f"{ended:g} is before scheduled_time {begun:g}")
    return ObservedJob(
        name=cells.text("name") or f"pod-{number}",
        at=cells.number("creation_time"),
        seconds=ended - begun,
        gpus=gpus,
        owner=cells.text("qos"),
        died=cells.text("pod_phase") == "Failed",
    )


#: application -> kind, and GPU-hours of its class in the Pollux evaluation
#: (small < 1, medium < 10, large < 100, else extra large; the values are assumed)
POLLUX = {
    "cifar10": ("resnet18-cifar10", 0.5),
    "ncf": ("vgg16-cifar10", 0.3),
    "bert": ("bert-sst2", 3.0),
    "deepspeech2": ("googlenet-cifar10", 3.0),
    "yolov3": ("inceptionv3-imagenet", 30.0),
    "imagenet": ("resnet50-imagenet", 200.0),
}


def _pollux(cells: _Cells, number: int) -> ObservedJob | None:
    """The workloads of Pollux and Sia. Lengths are not in the file, but those of the class.

    Columns: name, time, application, num_replicas, batch_size.
    """
    application = cells.text("application")
    if application not in POLLUX:
        problem = str(UnknownNameError("application", application, POLLUX))
        raise cells.error("application", problem)
    kind, hours = POLLUX[application]
    gpus = cells.integer("num_replicas", least=1)
    return ObservedJob(
        name=cells.text("name") or f"job-{number}",
        at=cells.number("time"),
        seconds=hours * 3600.0 / gpus,
        gpus=gpus,
        kind=kind,
    )


#: columns that identify a format, and its reader
READERS: dict[str, tuple[frozenset[str], Callable[[_Cells, int], ObservedJob | None]]] = {
    "philly": (frozenset({"timestamp", "duration", "num_gpus"}), _philly),
    "alibaba": (frozenset({"num_gpu", "creation_time", "deletion_time"}), _alibaba),
    "pollux": (frozenset({"application", "num_replicas", "time"}), _pollux),
}


def format_of(columns: list[str]) -> str | None:
    """The format with these columns; None if there is none."""
    found = (name for name, (known, _) in READERS.items() if known <= set(columns))
    return next(found, None)


def read_rows(path: Path, name: str) -> Iterator[ObservedJob]:
    read = READERS[name][1]
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        names: set[str] = set()
        for number, row in enumerate(rows):
            if None in row or any(value is None for value in row.values()):
                raise InvalidFileError(
                    path, f"not as many values as the {len(rows.fieldnames or [])} columns",
                    line=rows.line_num,
                )  # fmt: skip
            cells = _Cells(path, rows.line_num, row)
            observed = read(cells, number)
            if observed is None:
                continue
            if observed.name in names:
                raise cells.error("name", f"{observed.name!r} appears twice")
            names.add(observed.name)
            yield observed
