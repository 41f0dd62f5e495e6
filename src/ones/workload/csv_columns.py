"""The columns of a trace in CSV: names, types, defaults and limits of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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


YES_NO = {True: "yes", False: "no"}


def _yes_no(value: str) -> str:
    if value not in YES_NO.values():
        raise ValueError(value)
    return value


def _number(value: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


SUBMIT = "submit"
MAX_TEXT = 300
NO_KIND = "-"
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
    Column("owner", _text, "", "user that owns the job"),
    Column(
        "model",
        _text,
        "",
        "a kind of the data file (`ones trace physics` lists them); required for submit",
    ),
    Column("kind", _text, None, "what schedulers see as its kind; default: the model; -: none"),
    Column("dataset_size", int, None, "samples of an epoch; default: the model's middle size", 1),
    Column("classes", int, 10, "classes of the data set: the loss begins at their logarithm", 1),
    Column("base_batch", int, None, "the script's own batch; default: the model's", 1),
    Column("gpus", int, 1, "requested GPUs; for node-up: the GPUs of the node", 1, 2**20),
    Column("batch", int, None, "requested global batch; default: base_batch x gpus", 1),
    Column("deadline", _number, None, "seconds after its arrival until its user wants it done", 0),
    Column("min_batch", int, None, "smallest global batch that its user allows", 1),
    Column("max_batch", int, None, "largest global batch that its user allows", 1),
    Column("min_gpus", int, 1, "fewest GPUs it can run on", 1, 2**20),
    Column("max_gpus", int, None, "most GPUs it may have", 1, 2**20),
    Column("priority", _number, 0.0, "higher goes first", most=math.inf),
    Column("epochs", int, None, "the script's own number of epochs", 1),
    Column("max_epochs", int, None, "maximum number of epochs; default: epochs", 1),
    Column(
        "target_accuracy",
        _number,
        None,
        "stop when it is exceeded; default: the model's, unless epochs is given",
    ),
    Column("target_epochs", int, 10, "... for this number of consecutive epochs", 1),
    Column("patience", int, None, "stop after this number of epochs without improvement", 1),
    Column("joint", _yes_no, "no", "yes: target and patience share one counter of epochs"),
    Column("min_gain", _number, 0.0, "least rise of the accuracy that is an improvement"),
    Column("length", _number, 1.0, "factor on the epochs that the model needs"),
    Column("rate_follows", _yes_no, "yes", "no: the learning rate stays when the batch grows"),
    Column("dies_after", _number, None, "epochs after which the job fails"),
    Column("killed", _yes_no, "no", "yes: it does not fail then, but is killed"),
    Column("numbers", _text, "paper", "set of numbers with the model: paper, calibrated, artifact"),
    Column("run", int, 0, "which recorded run of the model and size, where there are several", 0),
    Column("node", _text, "", "for node events: its name"),
)
BY_NAME = {column.name: column for column in COLUMNS}
