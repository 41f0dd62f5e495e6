"""Copies one database into another and compares both before the move takes effect."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from ones.control.database import Claim, connect, hidden, open_engine, upgrade
from ones.control.schema import meta, metadata
from ones.control.store import MOVED_TO, WRITER, upsert
from ones.errors import UserError, WorldError

ROWS_AT_ONCE = 1000
#: keys of `meta` that belong to one database and are not copied
OWN_KEYS = (WRITER, MOVED_TO)

Progress = Callable[[str, int, int], None]  # table, rows so far, rows in all


def move(source: str, target: str, progress: Progress = lambda *_: None) -> dict[str, int]:
    """Move all rows and return their number by table. The target must be empty.

    If the move fails, the target stays empty. No controller may run on the source; afterwards none
    can start on it, and its error names the new database.
    """
    new = open_engine(target)
    old = connect(source)
    if old.url == new.url:
        old.dispose()
        raise UserError(f"database {old.url!r} cannot be moved to itself")
    claims: list[Claim] = []
    try:
        claims += [Claim(old)]
        _refuse_moved(old)
        claims += [Claim(new)]
        upgrade(new)
        with old.connect() as reading, new.begin() as writing:
            _refuse_full(writing, new.url)
            rows = {
                table.name: _copy(table, reading, writing, progress)
                for table in metadata.sorted_tables
            }
        with old.begin() as connection:
            upsert(meta, {"key": MOVED_TO, "value": hidden(target)})(connection)
    finally:
        for claim in claims:
            claim.release()
        old.dispose()
        new.dispose()
    return rows


def _refuse_moved(old: sa.Engine) -> None:
    with old.connect() as connection:
        where = connection.execute(sa.select(meta.c.value).where(meta.c.key == MOVED_TO)).scalar()
    if where:
        raise UserError(f"database {old.url!r} was already moved to {where}")


def _refuse_full(connection: sa.Connection, url: sa.URL) -> None:
    for table in metadata.sorted_tables:
        count = _count(table, connection)
        if count:
            raise UserError(f"database {url!r} is not empty: {count} rows in {table.name}")


def _rows(table: sa.Table) -> sa.Select[Any]:
    query = sa.select(table)
    return query.where(meta.c.key.not_in(OWN_KEYS)) if table is meta else query


def _count(table: sa.Table, connection: sa.Connection) -> int:
    query = sa.select(sa.func.count()).select_from(_rows(table).subquery())
    return int(connection.execute(query).scalar_one())


def _copy(
    table: sa.Table, reading: sa.Connection, writing: sa.Connection, progress: Progress
) -> int:
    total = _count(table, reading)
    done, digest = 0, 0
    options = {"yield_per": ROWS_AT_ONCE}
    for part in reading.execute(_rows(table), execution_options=options).mappings().partitions():
        writing.execute(table.insert(), [dict(row) for row in part])
        digest = _added(digest, part)
        done += len(part)
        progress(table.name, done, total)
    written = 0
    copied = writing.execute(_rows(table), execution_options=options).mappings().partitions()
    for part in copied:
        written = _added(written, part)
    if (done, written) != (total, digest):
        raise WorldError(f"table {table.name}: the copy differs from the source; nothing was moved")
    return total


def _added(digest: int, rows: Any) -> int:  # noqa: ANN401
    """The digest with more rows. Independent of their order: databases sort text differently."""
    for row in rows:
        digest += int.from_bytes(hashlib.sha256(_text(row).encode()).digest())
    return digest % (1 << 256)


def _text(row: Mapping[str, object]) -> str:
    return repr(sorted(row.items()))
