"""The database behind one writer thread: group commit, and nothing is acknowledged before it.

Whoever writes hands over what is to be written and a word to be called when it is safe.
The thread takes all that has gathered, writes it in one transaction, and then says so. A
disk that is full or a database that is locked is waited for: nothing is dropped, the
queue grows, `problem` says why, and work goes on when it goes on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from ones.control.database import connect
from ones.control.schema import log, mentions
from ones.errors import BugError

Operation = Callable[[sa.Connection], None]
Done = Callable[[Exception | None], None]

RETRY_SECONDS = 0.5
#: so many writes go into one transaction at most
MOST_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the run log."""

    number: int
    at: float
    kind: str
    text: str
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Write:
    entries: tuple[Entry, ...]
    operations: tuple[Operation, ...]
    done: Done | None


@dataclass(slots=True)
class _Stop:
    pass


class Store:
    """Reads are free for all threads; writes go through `write`."""

    def __init__(self, url: str) -> None:
        self._engine = connect(url)
        self._queue: queue.SimpleQueue[_Write | _Stop] = queue.SimpleQueue()
        self.problem = ""  # why writing stands still; empty: it does not
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="ones-writer", daemon=True)
        self._thread.start()

    # writing

    def write(
        self,
        entries: Sequence[Entry] = (),
        operations: Sequence[Operation] = (),
        done: Done | None = None,
    ) -> None:
        """Soon, with what others write; `done(None)` once it is safe, `done(error)` if it
        cannot be. It is called in the writer's thread."""
        self._queue.put(_Write(tuple(entries), tuple(operations), done))

    def write_now(self, *operations: Operation) -> None:
        """Wait until it is safe; raises what went wrong."""
        waiting = Waiting()
        self.write(operations=operations, done=waiting)
        waiting.wait()

    def flush(self) -> None:
        """Wait until all that was handed over before is safe."""
        self.write_now()

    def close(self) -> None:
        self._queue.put(_Stop())
        self._thread.join()
        self._engine.dispose()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            batch: list[_Write] = []
            first = self._queue.get()
            while True:
                if isinstance(first, _Stop):
                    stopping = True
                else:
                    batch.append(first)
                if stopping or len(batch) >= MOST_AT_ONCE:
                    break
                try:
                    first = self._queue.get_nowait()
                except queue.Empty:
                    break
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Write]) -> None:
        try:
            self._patiently(batch)
        except Exception as problem:
            if len(batch) == 1:
                self._tell(batch, problem)
            else:  # one of them is wrong: the others must not suffer
                for write in batch:
                    self._commit([write])
            return
        self._tell(batch, None)

    def _patiently(self, batch: list[_Write]) -> None:
        while True:
            try:
                self._transact(batch)
            except sa.exc.OperationalError as problem:
                # disk full, locked, connection lost: the world's doing, which passes
                self.problem = f"the database does not take writes: {problem.orig}"
                time.sleep(RETRY_SECONDS)
            else:
                self.problem = ""
                return

    def _transact(self, batch: list[_Write]) -> None:
        rows = [
            {"number": e.number, "at": e.at, "kind": e.kind, "entry": e.text}
            for write in batch
            for e in write.entries
        ]
        spoken_of = [
            {"job": job, "number": e.number}
            for write in batch
            for e in write.entries
            for job in e.jobs
        ]
        operations = [operation for write in batch for operation in write.operations]
        if not (rows or operations):
            return
        with self._engine.begin() as connection:
            if rows:
                connection.execute(log.insert(), rows)
            if spoken_of:
                connection.execute(mentions.insert(), spoken_of)
            for operation in operations:
                operation(connection)
        self.commits += 1

    def _tell(self, batch: list[_Write], problem: Exception | None) -> None:
        for write in batch:
            if write.done is not None:
                write.done(problem)
            elif problem is not None and write.entries:
                raise BugError(f"the run log was refused: {problem}") from problem

    # reading

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._engine.connect() as connection:
            yield connection

    def rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        with self.reading() as connection:
            return connection.execute(query).all()

    def entries_after(self, number: int) -> Iterator[tuple[int, str]]:
        """(number, text) of the run log, in order."""
        query = sa.select(log.c.number, log.c.entry).where(log.c.number > number)
        with self.reading() as connection:
            for row in connection.execution_options(yield_per=1000).execute(
                query.order_by(log.c.number)
            ):
                yield row.number, row.entry

    def last_number(self) -> int:
        with self.reading() as connection:
            return connection.execute(sa.select(sa.func.max(log.c.number))).scalar() or 0


@dataclass(slots=True)
class Waiting:
    """A `done` that another thread waits for."""

    _event: threading.Event = field(default_factory=threading.Event)
    _problem: Exception | None = None

    def __call__(self, problem: Exception | None) -> None:
        self._problem = problem
        self._event.set()

    def wait(self, seconds: float | None = None) -> None:
        if not self._event.wait(seconds):
            raise TimeoutError("the database has not taken it in time")
        if self._problem is not None:
            raise self._problem


def upsert(table: sa.Table, row: dict[str, Any]) -> Operation:
    """Insert, or replace what has the same key."""
    keys = [column.name for column in table.primary_key]

    def operation(connection: sa.Connection) -> None:
        chosen = sa.and_(*(table.c[key] == row[key] for key in keys))
        rest = {name: value for name, value in row.items() if name not in keys}
        if not rest:
            rest = {keys[0]: row[keys[0]]}
        if not connection.execute(sa.update(table).where(chosen).values(**rest)).rowcount:
            connection.execute(table.insert().values(**row))

    return operation


def insert(table: sa.Table, row: dict[str, Any]) -> Operation:
    def operation(connection: sa.Connection) -> None:
        connection.execute(table.insert().values(**row))

    return operation


def delete(table: sa.Table, key: dict[str, Any]) -> Operation:
    def operation(connection: sa.Connection) -> None:
        chosen = sa.and_(*(table.c[name] == value for name, value in key.items()))
        connection.execute(table.delete().where(chosen))

    return operation
