"""Encodes events, plans and snapshots as JSON, for files and database tables.

Numbers keep their exact value (the shortest text that reads back the same), keys keep their order,
most fields at their default are left out. So equal runs give equal bytes.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from msgspec import field

from ones.core.cluster import Cluster, Node
from ones.core.events import Event
from ones.core.job import SwitchCost
from ones.core.plan import Plan
from ones.core.record import Outcome
from ones.core.state import Snapshot
from ones.errors import short
from ones.wire.bounds import Positive, Tagged, Time
from ones.wire.decoding import CodecError, Decoder
from ones.wire.encoding import to_json, to_plain

VERSION = 1

Entry = Event | Plan


class Header(Tagged, frozen=True, kw_only=True):
    """The first line of a log: everything that a replay needs besides the events."""

    version: int
    software: str  # the version of ones that wrote it
    policy: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[Node, ...]
    switch_cost: SwitchCost
    workload: str = ""
    mechanism: str = ""  # `restart`: jobs were stopped and started to change their GPUs
    changed_at: Time | None = None  # policy, settings or software changed then; None: never
    #: if older entries were archived: number of the first entry, and the state of scheduler and
    #: policy before it
    first: Positive = 1
    state: Snapshot | None = None
    learned: Mapping[str, Any] | None = None

    @property
    def in_place(self) -> bool:
        return self.mechanism != "restart"

    @property
    def cluster(self) -> Cluster:
        return Cluster(list(self.nodes))


_KINDS = frozenset((Header, Plan, *typing.get_args(Event)))
_DECODER: Decoder[Entry | Header] = Decoder(Header | Plan | Event, logs=True)
_SNAPSHOTS: Decoder[Snapshot] = Decoder(Snapshot, logs=True)
_OUTCOMES: Decoder[Outcome] = Decoder(Outcome, logs=True)


def encode(entry: Entry | Header) -> str:
    """The entry as one line, without a line end."""
    if type(entry) not in _KINDS:
        raise TypeError(f"{type(entry).__name__} is not an entry of a run log")
    return to_json(entry)


def decode(line: str | bytes) -> Entry | Header:
    """The entry of a line; a CodecError names the field and the value."""
    return _DECODER.decode(line)


def decode_entry(line: str | bytes) -> Entry:
    """The entry of a line that is not the first."""
    entry = decode(line)
    if isinstance(entry, Header):
        raise CodecError("type", "a Header is valid on the first line only")
    return entry


def encode_saved(saved: Snapshot | Outcome) -> dict[str, Any]:
    """The value as plain JSON values: sets as sorted lists, a profile as a list of pairs."""
    plain: dict[str, Any] = to_plain(saved)
    for record in plain.get("records", ()):
        for name in ("occupied", "ready"):
            if name in record:
                record[name].sort()
        if "profile" in record:
            record["profile"] = list(record["profile"].items())
    return plain


def decode_snapshot(plain: object) -> Snapshot:
    if isinstance(plain, dict) and isinstance(plain.get("records"), list):
        plain = {**plain, "records": [_with_mapping(record) for record in plain["records"]]}
    return _SNAPSHOTS.convert(plain)


def _with_mapping(record: Any) -> Any:  # noqa: ANN401  # any JSON value
    """The record with the pairs of its profile as a dictionary."""
    if not isinstance(record, dict) or "profile" not in record:
        return record
    try:
        return {**record, "profile": {tuple(key): value for key, value in record["profile"]}}
    except (TypeError, ValueError) as problem:
        what = f"{short(record['profile'])} is not a list of pairs"
        raise CodecError("records.profile", what) from problem


def decode_outcome(plain: object) -> Outcome:
    return _OUTCOMES.convert(plain)
