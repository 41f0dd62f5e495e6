"""The database behind one writer thread: group commit, and nothing is acknowledged before it.

Whoever writes hands over what is to be written and a word to be called when it is safe.
The thread takes all that has gathered, writes it in one transaction, and then says so. A
disk that is full or a database that is locked or away is waited for: nothing is dropped,
the queue grows, `problem` says why, and work goes on when it goes on.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ones.control import logs
from ones.control.database import Claim, does_not_answer, open_engine, upgrade
from ones.control.heartbeat import Heartbeat
from ones.control.schema import log, mentions, meta
from ones.errors import UserError, WorldError

Operation = Callable[[sa.Connection], None]
Done = Callable[[Exception | None], None]

RETRY_SECONDS = 0.5
#: so many writes go into one transaction at most
MOST_AT_ONCE = 2000
#: key in `meta`: whose turn it is to write, and the number of the last commit
WRITER = "writer"
#: key in `meta`: this database is history, and the controller goes on in that one
MOVED_TO = "moved_to"

logger = logs.logger(__name__)  # `log` is a table


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
    at: float = field(default_factory=time.monotonic)  # when it was put


@dataclass(slots=True)
class _Stop:
    pass


class LostDatabaseError(WorldError):
    """Another controller writes to it: this one must end."""


class _Turn:
    """What makes a commit over a network safe to try again, and a stale controller harmless.

    Every transaction moves one row from the last commit's number to its own. If the row has
    that number already, an attempt whose answer was lost did go through; if it has another
    name, somebody else writes here.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._name = uuid.uuid4().hex
        self._number = 0
        with engine.begin() as connection:
            upsert(meta, {"key": WRITER, "value": self._value(0)})(connection)

    def take(self, connection: sa.Connection) -> bool:
        """False: it is done already."""
        mine = meta.c.key == WRITER
        before, after = self._value(self._number), self._value(self._number + 1)
        move = sa.update(meta).where(mine, meta.c.value == before).values(value=after)
        if connection.execute(move).rowcount:
            return True
        if connection.execute(sa.select(meta.c.value).where(mine)).scalar() == after:
            return False
        raise LostDatabaseError("another controller has taken over the database")

    def taken(self) -> None:
        self._number += 1

    def _value(self, number: int) -> str:
        return f"{self._name}:{number}"


Commit = Callable[[list[_Write]], Iterator[float]]


class Writer(Protocol):
    """Commits writes in the order in which they were put: `commit` takes those that have gathered
    and yields the seconds to wait before each further attempt."""

    def put(self, write: _Write) -> None: ...

    def wait(self, waiting: Waiting) -> None:
        """Returns when `waiting` was called; raises the problem that it was called with."""

    def close(self) -> None:
        """Returns when all that was put is committed."""


class WriterThread:
    """The writer of the service: a thread of its own."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._queue: queue.SimpleQueue[_Write | _Stop] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ones-writer", daemon=True)
        self._thread.start()

    def put(self, write: _Write) -> None:
        self._queue.put(write)

    def wait(self, waiting: Waiting) -> None:
        waiting.wait()

    def close(self) -> None:
        self._queue.put(_Stop())
        self._thread.join()

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
                try:
                    for seconds in self._commit(batch):
                        time.sleep(seconds)
                except Exception:  # the thread must live: everything waits for it
                    logger.exception("a write failed")


class Store:
    """Reads are free for all threads; writes go through `write`."""

    def __init__(
        self, database: str | sa.Engine, writer: Callable[[Commit], Writer] = WriterThread
    ) -> None:
        self._engine = open_engine(database) if isinstance(database, str) else database
        claim: Claim | None = None
        try:
            claim = self._claim = Claim(self._engine)
            upgrade(self._engine)
            self._refuse_what_was_moved()
            self._turn = _Turn(self._engine) if self._claim.needed else None
        except BaseException:
            if claim is not None:
                claim.release()
            self._engine.dispose()
            raise
        self._lost: LostDatabaseError | None = None
        self.problem = ""  # why writing stands still; empty: it does not
        self.refused = ""  # why an entry of the run log could not be written at all
        self.commits = 0
        self.heartbeat = Heartbeat("writer")
        self._oldest: float | None = None  # when the oldest write that is under way was put
        self._writer = writer(self._commit)

    def _refuse_what_was_moved(self) -> None:
        moved = self.rows(sa.select(meta.c.value).where(meta.c.key == MOVED_TO))
        if moved:
            raise UserError(
                f"database {self._engine.url!r} was moved to {moved[0].value};"
                " name that one with --database"
            )

    # writing

    def write(
        self,
        entries: Sequence[Entry] = (),
        operations: Sequence[Operation] = (),
        done: Done | None = None,
    ) -> None:
        """Soon, with what others write; `done(None)` once it is safe, `done(error)` if it
        cannot be. It is called in the writer's thread."""
        self._writer.put(_Write(tuple(entries), tuple(operations), done))

    def write_now(self, *operations: Operation) -> None:
        """Wait until it is safe; raises what went wrong."""
        waiting = Waiting()
        self.write(operations=operations, done=waiting)
        self._writer.wait(waiting)

    def flush(self) -> None:
        """Wait until all that was handed over before is safe."""
        self.write_now()

    def close(self) -> None:
        self._writer.close()
        self._claim.release()
        self._engine.dispose()

    def unwritten_seconds(self) -> float:
        """How long the oldest write has waited."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest

    def _commit(self, batch: list[_Write]) -> Iterator[float]:
        """Yields the seconds to wait before each further attempt."""
        self._oldest = batch[0].at
        try:
            yield from self._commit_all(batch)
        finally:
            self._oldest = None
            self.heartbeat.waiting()

    def _commit_all(self, batch: list[_Write]) -> Iterator[float]:
        try:
            yield from self._patiently(batch)
        except Exception as problem:
            if isinstance(problem, LostDatabaseError):
                self._lost = problem
                self.problem = str(problem)
            if len(batch) == 1:
                self._tell(batch, problem)
            else:  # one of them is wrong: the others must not suffer
                for write in batch:
                    yield from self._commit_all([write])
            return
        self._tell(batch, None)

    def _patiently(self, batch: list[_Write]) -> Iterator[float]:
        if self._lost is not None:
            raise self._lost
        began = time.monotonic()
        while True:
            self.heartbeat.working()
            try:
                self._transact(batch)
            except sa.exc.DBAPIError as problem:
                if not (isinstance(problem, sa.exc.OperationalError) or _is_cut(problem)):
                    raise
                # disk full, locked, connection lost: the world's doing, which passes
                if not self.problem:
                    logger.warning("writer waits for the database", error=str(problem.orig))
                self.problem = f"the database does not take writes: {problem.orig}"
                yield RETRY_SECONDS
                self._claim_again()
            else:
                if self.problem:
                    seconds = round(time.monotonic() - began, 1)
                    logger.warning("writer goes on", seconds=seconds)
                self.problem = ""
                return

    def _claim_again(self) -> None:
        """The session that held the lock may have been lost together with the writer's."""
        try:
            mine = self._claim.take()
        except WorldError:
            return  # still away
        if not mine:
            raise LostDatabaseError("another controller has taken over the database")

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
            if self._turn is None or self._turn.take(connection):
                if rows:
                    connection.execute(log.insert(), rows)
                if spoken_of:
                    connection.execute(mentions.insert(), spoken_of)
                _run(operations, connection)
        if self._turn is not None:
            self._turn.taken()
        self.commits += 1

    def _tell(self, batch: list[_Write], problem: Exception | None) -> None:
        for write in batch:
            if problem is not None and write.entries and problem is not self._lost:
                numbers = ", ".join(str(entry.number) for entry in write.entries)
                self.refused = f"the run log does not take entry {numbers}: {problem}"
                logger.error("run log entry refused", entry=numbers, error=str(problem))
            if write.done is None:
                continue
            try:
                write.done(problem)
            except Exception:  # of one reader; the others must still be told
                logger.exception("an acknowledgement failed")

    # reading

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as problem:
            if not (isinstance(problem, sa.exc.OperationalError) or _is_cut(problem)):
                raise
            raise does_not_answer(self._engine, problem) from problem

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

    def first_number(self) -> int:
        with self.reading() as connection:
            return connection.execute(sa.select(sa.func.min(log.c.number))).scalar() or 1

    def last_number(self) -> int:
        with self.reading() as connection:
            return connection.execute(sa.select(sa.func.max(log.c.number))).scalar() or 0


def _is_cut(problem: sa.exc.DBAPIError) -> bool:
    return problem.connection_invalidated


@dataclass(slots=True)
class Waiting:
    """A `done` that another thread waits for."""

    _event: threading.Event = field(default_factory=threading.Event)
    _problem: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self._event.is_set()

    def __call__(self, problem: Exception | None) -> None:
        self._problem = problem
        self._event.set()

    def wait(self, seconds: float | None = None) -> None:
        if not self._event.wait(seconds):
            raise TimeoutError("the database has not taken it in time")
        if self._problem is not None:
            raise self._problem


@dataclass(frozen=True, slots=True, eq=False)
class _Upsert:
    table: sa.Table
    row: dict[str, Any]

    @property
    def kind(self) -> tuple[sa.Table, tuple[str, ...]]:
        return self.table, tuple(self.row)

    def __call__(self, connection: sa.Connection) -> None:
        connection.execute(_upsert_into(*self.kind, connection.dialect.name), self.row)


def upsert(table: sa.Table, row: dict[str, Any]) -> Operation:
    """Insert, or replace what has the same key."""
    return _Upsert(table, row)


@lru_cache
def _upsert_into(table: sa.Table, names: tuple[str, ...], dialect: str) -> sa.Insert:
    new: Any = (sqlite if dialect == "sqlite" else postgresql).insert(table)
    keys = [column.name for column in table.primary_key]
    rest = {name: new.excluded[name] for name in names if name not in keys}
    statement: sa.Insert = (
        new.on_conflict_do_update(index_elements=keys, set_=rest)
        if rest
        else new.on_conflict_do_nothing(index_elements=keys)
    )
    return statement


def _run(operations: Iterable[Operation], connection: sa.Connection) -> None:
    """In order; upserts of one kind that follow one another as one statement, and of those with
    the same key only the last."""
    for kind, some in groupby(operations, lambda o: o.kind if isinstance(o, _Upsert) else None):
        if kind is None:
            for operation in some:
                operation(connection)
            continue
        table, names = kind
        keys = [column.name for column in table.primary_key]
        rows = [operation.row for operation in some if isinstance(operation, _Upsert)]
        last = {tuple(row[key] for key in keys): row for row in rows}
        statement = _upsert_into(table, names, connection.dialect.name)
        connection.execute(statement, list(last.values()))


def insert(table: sa.Table, row: dict[str, Any]) -> Operation:
    def operation(connection: sa.Connection) -> None:
        connection.execute(table.insert().values(**row))

    return operation


def delete(table: sa.Table, key: dict[str, Any]) -> Operation:
    def operation(connection: sa.Connection) -> None:
        chosen = sa.and_(*(table.c[name] == value for name, value in key.items()))
        connection.execute(table.delete().where(chosen))

    return operation
