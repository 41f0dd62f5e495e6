"""Moves old events from the database into compressed files, so that the run log does not grow
without end.

A log can begin at a snapshot only, so one snapshot per day is kept besides the two newest. All
entries up to the newest kept snapshot that is old enough go into
`archive/events-FIRST-LAST.jsonl.gz`, a run log that `ones replay` reads. Then they are removed from
the tables. A crash in between can leave entries in both, but never in neither.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from msgspec.structs import replace

from ones.control.schema import log, mentions, meta, outcomes, snapshots
from ones.control.store import Store, upsert
from ones.core.events import EntryQuarantined
from ones.core.record import Outcome
from ones.errors import UserError
from ones.runlog import Entry, Header, decode, encode
from ones.runlog.encoding import decode_entry, decode_outcome, decode_snapshot

DAY = 86_400.0
#: key in `meta`: numbers and times of the snapshots at which a log can begin
KEPT = "kept_snapshots"
HEADER = "header"
ROWS_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class Window:
    """The entries of the run log in one file."""

    first: int
    last: int
    path: Path


def kept_snapshots(connection: sa.Connection) -> dict[int, float]:
    text = connection.execute(sa.select(meta.c.value).where(meta.c.key == KEPT)).scalar()
    return {int(number): float(at) for number, at in json.loads(text)} if text else {}


def keep_snapshots(connection: sa.Connection, kept: dict[int, float]) -> None:
    text = json.dumps(sorted(kept.items()))
    upsert(meta, {"key": KEPT, "value": text})(connection)


def header_of(connection: sa.Connection) -> tuple[Header, int]:
    """The header of a run log with the entries of the database, and its first number."""
    text = connection.execute(sa.select(meta.c.value).where(meta.c.key == HEADER)).scalar()
    if text is None:
        raise UserError(f"{connection.engine.url!r}: no service has run with this database")
    header = decode(text)
    assert isinstance(header, Header)
    first = connection.execute(sa.select(sa.func.min(log.c.number))).scalar() or 1
    if first == 1:
        return header, first
    return _header_at(connection, header, first), first


def _header_at(connection: sa.Connection, header: Header, first: int) -> Header:
    """The header of a log that begins with an entry, from the snapshot before it."""
    query = sa.select(snapshots.c.body).where(snapshots.c.number == first - 1)
    body = connection.execute(query).scalar()
    if body is None:
        raise UserError(
            f"the run log begins with entry {first}, and the snapshot before it is missing;"
            " restore the database from a backup"
        )
    saved = json.loads(body)
    state = decode_snapshot(saved["state"])
    learned = saved["policy"] if saved.get("by") == header.policy else None
    return replace(header, first=first, state=state, learned=learned)


def entries(connection: sa.Connection, last: int | None = None) -> Iterator[str]:
    query = sa.select(log.c.entry).order_by(log.c.number)
    if last is not None:
        query = query.where(log.c.number <= last)
    found = connection.execution_options(yield_per=1000).execute(query)
    yield from found.scalars()


def log_since(connection: sa.Connection, at: float) -> tuple[Header, Iterator[Entry]]:
    """The entries from the last kept snapshot before a time on (at most a day more than is asked
    for), without quarantined ones, and the header of a log that begins there."""
    header, first = header_of(connection)
    kept = [n for n, taken in kept_snapshots(connection).items() if taken <= at and n >= first]
    if kept:
        first = max(kept) + 1
        header = _header_at(connection, header, first)
        if header.state is not None:
            ended = tuple(_ended_before(connection, first))
            header = replace(header, state=replace(header.state, ended=ended))
    marks = sa.select(log.c.entry).where(log.c.kind == EntryQuarantined.__name__)
    skipped = {
        mark.entry
        for text in connection.execute(marks).scalars()
        if isinstance(mark := decode(text), EntryQuarantined) and not mark.policy_only
    }
    query = sa.select(log.c.number, log.c.entry).where(log.c.number >= first)
    rows = connection.execution_options(yield_per=1000).execute(query.order_by(log.c.number))
    return header, (decode_entry(row.entry) for row in rows if row.number not in skipped)


def _ended_before(connection: sa.Connection, first: int) -> Iterator[Outcome]:
    """The jobs that had ended at the snapshot before an entry: a dependency may name them."""
    query = sa.select(snapshots.c.body).where(snapshots.c.number == first - 1)
    count = json.loads(connection.execute(query).scalar_one())["ended"]
    rows = sa.select(outcomes.c.body).where(outcomes.c.position < count)
    for body in connection.execute(rows.order_by(outcomes.c.position)).scalars():
        yield decode_outcome(json.loads(body))


def archive(store: Store, directory: Path, days: float, now: float) -> Window | None:
    """Move entries that are older than `days`, up to a kept snapshot; None if there are none."""
    if days <= 0:
        return None
    with store.reading() as connection:
        kept = kept_snapshots(connection)
        old = [number for number, at in kept.items() if at <= now - days * DAY]
        last = max(old, default=0)
        begins = connection.execute(sa.select(sa.func.min(log.c.number))).scalar()
        if begins is None or begins > last:
            return None
        header, first = header_of(connection)
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / f"events-{first:012d}-{last:012d}.jsonl.gz"
        _write(path, header, entries(connection, last))
    for end in range(first + ROWS_AT_ONCE, last + ROWS_AT_ONCE + 1, ROWS_AT_ONCE):
        store.write_now(partial(_remove_before, min(end, last + 1)))
    store.write_now(lambda connection: _forget_older(connection, last))
    return Window(first, last, path)


def _remove_before(end: int, connection: sa.Connection) -> None:
    for table in (mentions, log):
        connection.execute(table.delete().where(table.c.number < end))


def _forget_older(connection: sa.Connection, last: int) -> None:
    """Remove snapshots before `last`, where the log begins now."""
    kept = {n: at for n, at in kept_snapshots(connection).items() if n >= last}
    keep_snapshots(connection, kept)
    connection.execute(snapshots.delete().where(snapshots.c.number < last))


def _write(path: Path, header: Header, lines: Iterator[str]) -> None:
    beside = path.with_name(path.name + ".part")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as raw, gzip.open(raw, "wb") as file:
            file.write(encode(header).encode() + b"\n")
            for line in lines:
                file.write(line.encode() + b"\n")
            file.close()
            raw.flush()
            os.fsync(raw.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
