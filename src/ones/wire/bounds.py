"""Types with bounds for the fields of messages and log entries, and the base classes of both.

A `Value` is part of a message or of a log entry; a `Tagged` value names its class in `type`.
Bounds are checked when a value is read from JSON, not when it is made in Python. What the
scheduler itself computes from bounded reports stays within the wider bounds of the log.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from math import isnan
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class Value(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A frozen value. JSON omits fields at their default; unknown fields are refused."""


class Tagged(Value, frozen=True, tag=True, tag_field="type"):
    """A value with its class name as `type` in JSON."""


@cache
def _shared(source: type[msgspec.Struct], target: type[msgspec.Struct]) -> tuple[str, ...]:
    known = set(source.__struct_fields__)
    return tuple(name for name in target.__struct_fields__ if name in known)


def shared(source: msgspec.Struct, target: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of `source` that the class `target` has, as keyword arguments for it."""
    return {name: getattr(source, name) for name in _shared(type(source), target)}


MOST_REPORTS = 10_000  # in one message; the service's limit is lower (max_reports_per_request)
MOST_WORKERS = 2**16  # of one job
MOST_EPOCHS = 10**9
MOST_MEASURE = 1e30
MOST_TEXT = 2000

# in reports and in the log

Number = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
PlanNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # 2**62 stands for "after every plan"
Gpus = Annotated[int, Meta(ge=1, le=2**20)]
Index = Annotated[int, Meta(ge=0, le=10**9)]
EpochNumber = Annotated[int, Meta(ge=0, le=MOST_EPOCHS)]
Epochs = Annotated[int, Meta(ge=1, le=MOST_EPOCHS)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]
SomeSeconds = Annotated[float, Meta(gt=0.0, le=1e12)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Time = Finite  # seconds on the engine's clock
Amount = Annotated[float, Meta(ge=0.0, le=MOST_MEASURE)]
Measure = Annotated[float, Meta(ge=-MOST_MEASURE, le=MOST_MEASURE)]

# in reports only

Batch = Annotated[int, Meta(ge=1, le=2**31)]
Parts = Annotated[int, Meta(ge=1, le=2**20)]
StepSeconds = Annotated[float, Meta(ge=1e-9, le=1e6)]
PauseSeconds = Annotated[float, Meta(ge=0.0, le=1e6)]
NotFinite = Literal["nan", "inf", "-inf"]
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Name = Annotated[str, Meta(max_length=300)]
_WORKER = r"\A[^\x00-\x1f]{1,300}/[0-9]{1,9}\Z"
WorkerName = Annotated[str, Meta(pattern=_WORKER)]

#: printable ASCII without quotes, angle brackets and backslashes
_URL = r"\Ahttps?://[!#-&(-;=?-\[\]-_a-~]{1,1990}\Z"
Url = Annotated[str, Meta(pattern=_URL)]

#: names of patterns in messages
FORMS: Mapping[str, str] = {_WORKER: "node/index", _URL: "an http(s) address"}


# for senders


def as_measure(value: float | None) -> float | NotFinite | None:
    """A measure as it is sent: nan, and values that are infinite or out of bounds, as strings.

    >>> as_measure(0.5), as_measure(float("nan")), as_measure(-1e99), as_measure(None)
    (0.5, 'nan', '-inf', None)
    """
    if value is None or abs(value) <= MOST_MEASURE:
        return None if value is None else float(value)
    if isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def as_text(value: str) -> str:
    """A text as it is sent: valid Unicode, cut to MOST_TEXT characters."""
    return value[:MOST_TEXT].encode("utf-8", "replace").decode()
