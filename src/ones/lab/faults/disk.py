"""A simulated disk: SQLite in memory that outlives the controller, and a writer without a thread.

A commit may be slow, fail for a while, or be cut by a crash just before or just after it. What
was not committed is lost with the controller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from ones.control.database import prepared, upgrade
from ones.control.store import MOST_AT_ONCE, Commit, Entry, Waiting, _Write
from ones.lab.faults.world import Life, World

FULL = "database or disk is full"


class _Connection(sqlite3.Connection):
    """Survives the pools of SQLAlchemy; asks the disk around each commit."""

    disk: SimulatedDisk | None = None

    def commit(self) -> None:
        if self.disk is not None and self.in_transaction:
            self.disk.before_commit()
            super().commit()
            self.disk.after_commit()
        else:
            super().commit()

    def close(self) -> None:
        pass


@cache
def _opened() -> tuple[sa.Engine, _Connection, sqlite3.Connection]:
    """The engine, its only connection, and a database with nothing but its tables. One of each
    for all seeds: SQLAlchemy keeps compiled statements by engine."""
    raw = sqlite3.connect(":memory:", factory=_Connection, check_same_thread=False)
    engine = prepared(sa.create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool))
    upgrade(engine)
    empty = sqlite3.connect(":memory:", check_same_thread=False)
    raw.backup(empty)
    return engine, raw, empty


class SimulatedDisk:
    def __init__(self, world: World) -> None:
        self._world = world
        self.engine, self._raw, empty = _opened()
        self._raw.disk = None
        self._raw.rollback()
        empty.backup(self._raw)
        self._raw.disk = self
        self.latency = (0.002, 0.02)  # seconds of a commit, from and to
        self.is_full = False

    def before_commit(self) -> None:
        self._world.touch("disk, before a commit")
        if self.is_full:
            raise sqlite3.OperationalError(FULL)

    def after_commit(self) -> None:
        self._world.touch("disk, after a commit")

    def cut(self) -> None:
        """The controller has crashed: an open transaction is gone."""
        if self._raw.in_transaction:
            self._raw.rollback()

    def last_number(self) -> int:
        (number,) = self._raw.execute("SELECT max(number) FROM log").fetchone()
        return number or 0

    def query(self, text: str) -> list[Any]:
        return self._raw.execute(text).fetchall()


class SimulatedWriter:
    """Commits in virtual time what has gathered. See `ones.control.store.Writer`."""

    def __init__(self, world: World, disk: SimulatedDisk, life: Life, commit: Commit) -> None:
        self._world, self._disk, self._life, self._commit = world, disk, life, commit
        self._queue: list[_Write] = []
        self._batch: list[_Write] = []
        self._attempts: Iterator[float] = iter(())
        self._busy = False
        self.refused: Entry | None = None  # at which the controller crashed

    def put(self, write: _Write) -> None:
        if write.entries:
            self.refused = write.entries[-1]
        self._world.touch("write")
        self.refused = None
        self._queue.append(write)
        self._begin()

    def wait(self, waiting: Waiting) -> None:
        while not waiting.is_over:
            self._world.touch("wait for the disk")
            if not self._world.step(self._world.now + 3600.0):
                raise AssertionError("nothing will ever write")
        waiting.wait(0.0)

    def close(self) -> None:
        while self._busy:
            self._world.step(self._world.now + 3600.0)

    def unwritten(self) -> list[Entry]:
        """Entries that were handed over and are not on the disk, in order."""
        last = self._disk.last_number()
        entries = (entry for write in (*self._batch, *self._queue) for entry in write.entries)
        return [entry for entry in entries if entry.number > last]

    def _begin(self) -> None:
        if not self._busy and self._queue:
            self._busy = True
            seconds = self._world.dice.uniform(*self._disk.latency)
            self._world.after(seconds, self._write, self._life)

    def _write(self) -> None:
        self._batch, self._queue = self._queue[:MOST_AT_ONCE], self._queue[MOST_AT_ONCE:]
        self._attempts = self._commit(self._batch)
        self._attempt()

    def _attempt(self) -> None:
        seconds = next(self._attempts, None)
        if seconds is not None:
            self._world.after(seconds, self._attempt, self._life)
            return
        self._batch, self._busy = [], False
        self._begin()
