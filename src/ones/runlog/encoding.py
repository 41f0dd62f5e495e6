"""Events and plans as JSON: the one serialiser of the domain, for files and tables alike.

Numbers keep their exact value (Python writes the shortest text that reads back the
same), keys keep their order, fields at their default are left out: equal runs give
equal bytes.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ones.core.cluster import Cluster, Node
from ones.core.events import Event
from ones.core.job import SwitchCost
from ones.core.plan import Plan
from ones.core.record import Outcome
from ones.core.state import Snapshot
from ones.wire.codec import Codec, CodecError, parse

VERSION = 1

Entry = Event | Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of a log: all that a replay needs to know beside the events."""

    version: int
    software: str  # the version of ones that wrote it
    policy: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[Node, ...]
    switch_cost: SwitchCost
    workload: str = ""
    mechanism: str = ""  # `restart`: jobs were stopped and started to change their GPUs
    changed_at: float | None = None  # policy, settings or software were others before that

    @property
    def in_place(self) -> bool:
        return self.mechanism != "restart"

    @property
    def cluster(self) -> Cluster:
        return Cluster(list(self.nodes))


_CODEC = Codec(Header, Plan, *typing.get_args(Event))
_SAVED = Codec(Snapshot, Outcome)


def encode(entry: Entry | Header) -> str:
    """One line, without its end."""
    return json.dumps(_CODEC.encode(entry), separators=(",", ":"), allow_nan=False)


def decode(line: str) -> Entry | Header:
    """The entry of a line; a CodecError names the field and the value."""
    entry: Entry | Header = _CODEC.decode(parse(line))
    return entry


def encode_saved(saved: Snapshot | Outcome) -> dict[str, Any]:
    return _SAVED.encode(saved)


def decode_snapshot(plain: object) -> Snapshot:
    saved = _SAVED.decode(plain)
    if not isinstance(saved, Snapshot):
        raise CodecError("type", "is not a snapshot")
    return saved


def decode_outcome(plain: object) -> Outcome:
    saved = _SAVED.decode(plain)
    if not isinstance(saved, Outcome):
        raise CodecError("type", "is not the outcome of a job")
    return saved
