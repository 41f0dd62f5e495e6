"""Old events: moved from the database into compressed files, up to a snapshot.

The run log grows for ever otherwise. A snapshot a day is kept beside the two newest ones, so
that a log can begin at each of them: everything up to the newest one that is old enough goes
into `archive/events-FIRST-LAST.jsonl.gz`, a run log as `ones replay` reads it, and is then
removed from the tables. A crash in between leaves some entries in both places, and none in none.
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

from ones.control.schema import log, mentions, meta, snapshots
from ones.control.store import Store, upsert
from ones.errors import UserError
from ones.runlog import Header, decode, encode
from ones.runlog.encoding import decode_snapshot

DAY = 86_400.0
#: key in `meta`: numbers and times of the snapshots at which a log may begin
KEPT = "kept_snapshots"
HEADER = "header"
ROWS_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class Window:
    """Entries of the run log that one file holds."""

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
    """The header of a run log that begins where the database does, and the first number."""
    text = connection.execute(sa.select(meta.c.value).where(meta.c.key == HEADER)).scalar()
    if text is None:
        raise UserError(f"{connection.engine.url!r}: no service has run with this database")
    header = decode(text)
    assert isinstance(header, Header)
    first = connection.execute(sa.select(sa.func.min(log.c.number))).scalar() or 1
    if first == 1:
        return header, first
    query = sa.select(snapshots.c.body).where(snapshots.c.number == first - 1)
    body = connection.execute(query).scalar()
    if body is None:
        raise UserError(f"the run log begins with entry {first}, and no snapshot stands before it")
    saved = json.loads(body)
    state = decode_snapshot(saved["state"])
    learned = saved["policy"] if saved.get("by") == header.policy else None
    return replace(header, first=first, state=state, learned=learned), first


def entries(connection: sa.Connection, last: int | None = None) -> Iterator[str]:
    query = sa.select(log.c.entry).order_by(log.c.number)
    if last is not None:
        query = query.where(log.c.number <= last)
    found = connection.execution_options(yield_per=1000).execute(query)
    yield from found.scalars()


def archive(store: Store, directory: Path, days: float, now: float) -> Window | None:
    """Move what is older than so many days, up to a kept snapshot; None: nothing is."""
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
    """A log begins at `last` now: snapshots before it have nothing to begin."""
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
