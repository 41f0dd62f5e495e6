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
from ones.lab.faults.context import ControllerInstance, FaultContext

FULL = "database or disk is full"


class _Connection(sqlite3.Connection):
    """A connection that SQLAlchemy cannot close; calls the disk around each commit."""

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
    """The engine, its only connection, and an empty database with its tables. They serve all
    seeds, because SQLAlchemy caches compiled statements by engine."""
    raw = sqlite3.connect(":memory:", factory=_Connection, check_same_thread=False)
    engine = prepared(sa.create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool))
    upgrade(engine)
    empty = sqlite3.connect(":memory:", check_same_thread=False)
    raw.backup(empty)
    return engine, raw, empty


class SimulatedDisk:
    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self.engine, self._raw, empty = _opened()
        self._raw.disk = None
        self._raw.rollback()
        empty.backup(self._raw)
        self._raw.disk = self
        self.latency = (0.002, 0.02)  # seconds of a commit, from and to
        self.is_full = False

    def before_commit(self) -> None:
        self._context.use("disk, before a commit")
        if self.is_full:
            raise sqlite3.OperationalError(FULL)

    def after_commit(self) -> None:
        self._context.use("disk, after a commit")

    def cut(self) -> None:
        """Drops the open transaction of a controller that has crashed."""
        if self._raw.in_transaction:
            self._raw.rollback()

    def last_number(self) -> int:
        (number,) = self._raw.execute("SELECT max(number) FROM log").fetchone()
        return number or 0

    def query(self, text: str) -> list[Any]:
        return self._raw.execute(text).fetchall()


class SimulatedWriter:
    """Commits writes in virtual time. See `ones.control.store.Writer`."""

    def __init__(
        self,
        context: FaultContext,
        disk: SimulatedDisk,
        instance: ControllerInstance,
        commit: Commit,
    ) -> None:
        self._context, self._disk, self._instance, self._commit = context, disk, instance, commit
        self._queue: list[_Write] = []
        self._batch: list[_Write] = []
        self._attempts: Iterator[float] = iter(())
        self._busy = False
        self.refused: Entry | None = None  # the write at which the controller crashed

    def put(self, write: _Write) -> None:
        if write.entries:
            self.refused = write.entries[-1]
        self._context.use("write")
        self.refused = None
        self._queue.append(write)
        self._begin()

    def wait(self, waiting: Waiting) -> None:
        while not waiting.is_over:
            self._context.use("wait for the disk")
            if not self._context.step(self._context.now + 3600.0):
                raise AssertionError("no write is scheduled")
        waiting.wait(0.0)

    def close(self) -> None:
        while self._busy:
            self._context.step(self._context.now + 3600.0)

    def unwritten(self) -> list[Entry]:
        """Entries that the controller has written and that are not on the disk, in order."""
        last = self._disk.last_number()
        entries = (entry for write in (*self._batch, *self._queue) for entry in write.entries)
        return [entry for entry in entries if entry.number > last]

    def _begin(self) -> None:
        if not self._busy and self._queue:
            self._busy = True
            seconds = self._context.rng.uniform(*self._disk.latency)
            self._context.after(seconds, self._write, self._instance)

    def _write(self) -> None:
        self._batch, self._queue = self._queue[:MOST_AT_ONCE], self._queue[MOST_AT_ONCE:]
        self._attempts = self._commit(self._batch)
        self._attempt()

    def _attempt(self) -> None:
        seconds = next(self._attempts, None)
        if seconds is not None:
            self._context.after(seconds, self._attempt, self._instance)
            return
        self._batch, self._busy = [], False
        self._begin()
