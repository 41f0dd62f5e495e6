"""Readers of public production traces: Philly, Alibaba 2023, and Pollux's workloads.

Each turns its rows into `Observed` ones; what cannot be a training job (no GPU, never
started) is passed over, what is malformed is refused with file, line, field and value.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from ones.errors import InvalidFileError, UnknownNameError, short
from ones.workload.observed import Observed

Row = dict[str, str]


class _Cells:
    """The cells of one line, read with complaints that name the place."""

    def __init__(self, path: Path, line: int, row: Row) -> None:
        self._path, self._line, self._row = path, line, row

    def text(self, field: str) -> str:
        return (self._row.get(field) or "").strip()

    def number(self, field: str, *, least: float = 0.0, most: float = 1e12) -> float:
        text = self.text(field)
        try:
            number = float(text)
        except ValueError:
            raise self.wrong(field, f"{text!r} is not a number") from None
        if not isfinite(number):
            raise self.wrong(field, f"{text!r} is not a finite number")
        if number < least:
            raise self.wrong(field, f"{text} is less than {least:g}")
        if number > most:
            raise self.wrong(field, f"{short(text)} is more than {most:g}")
        return number

    def whole(self, field: str, *, least: int = 0) -> int:
        number = self.number(field, least=least, most=2**20)  # GPUs, all of them
        if number != int(number):
            raise self.wrong(field, f"{self.text(field)} is not a whole number")
        return int(number)

    def wrong(self, field: str, problem: str) -> InvalidFileError:
        return InvalidFileError(self._path, problem, line=self._line, field=field)


def _philly(cells: _Cells, number: int) -> Observed | None:
    """timestamp, duration, num_gpus, gpu_time, cluster: Microsoft's Philly, as condensed by the
    authors of Pollux. It has no status."""
    text = cells.text("timestamp")
    try:
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise cells.wrong("timestamp", f"{text!r} is not a date and time") from None
    return Observed(
        name=f"philly-{number}",
        at=moment.timestamp(),
        seconds=cells.number("duration"),
        gpus=cells.whole("num_gpus", least=1),
        owner=cells.text("cluster"),
    )


def _alibaba(cells: _Cells, number: int) -> Observed | None:
    """Pods of Alibaba's GPU cluster, 2023. A part of a GPU counts as one."""
    gpus = cells.whole("num_gpu")
    if gpus == 0 or not cells.text("scheduled_time") or not cells.text("deletion_time"):
        return None
    begun, ended = cells.number("scheduled_time"), cells.number("deletion_time")
    if ended < begun:
        raise cells.wrong("deletion_time", f"{ended:g} is before scheduled_time {begun:g}")
    return Observed(
        name=cells.text("name") or f"pod-{number}",
        at=cells.number("creation_time"),
        seconds=ended - begun,
        gpus=gpus,
        owner=cells.text("qos"),
        died=cells.text("pod_phase") == "Failed",
    )


#: application -> kind, and GPU-hours in the middle of its class in the Pollux evaluation
#: (small < 1, medium < 10, large < 100, else extra large; the values are assumed)
POLLUX = {
    "cifar10": ("resnet18-cifar10", 0.5),
    "ncf": ("vgg16-cifar10", 0.3),
    "bert": ("bert-sst2", 3.0),
    "deepspeech2": ("googlenet-cifar10", 3.0),
    "yolov3": ("inceptionv3-imagenet", 30.0),
    "imagenet": ("resnet50-imagenet", 200.0),
}


def _pollux(cells: _Cells, number: int) -> Observed | None:
    """name, time, application, num_replicas, batch_size: the workloads of Pollux and Sia. Lengths
    are not in the file; each application gets the middle of its class."""
    application = cells.text("application")
    if application not in POLLUX:
        problem = str(UnknownNameError("application", application, POLLUX))
        raise cells.wrong("application", problem)
    kind, hours = POLLUX[application]
    gpus = cells.whole("num_replicas", least=1)
    return Observed(
        name=cells.text("name") or f"job-{number}",
        at=cells.number("time"),
        seconds=hours * 3600.0 / gpus,
        gpus=gpus,
        kind=kind,
    )


#: columns by which a file is known, and its reader
READERS: dict[str, tuple[frozenset[str], Callable[[_Cells, int], Observed | None]]] = {
    "philly": (frozenset({"timestamp", "duration", "num_gpus"}), _philly),
    "alibaba": (frozenset({"num_gpu", "creation_time", "deletion_time"}), _alibaba),
    "pollux": (frozenset({"application", "num_replicas", "time"}), _pollux),
}


def format_of(columns: list[str]) -> str | None:
    """Which of the known traces has these columns; None: none of them."""
    found = (name for name, (known, _) in READERS.items() if known <= set(columns))
    return next(found, None)


def read_rows(path: Path, name: str) -> Iterator[Observed]:
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
                raise cells.wrong("name", f"{observed.name!r} is there twice")
            names.add(observed.name)
            yield observed
