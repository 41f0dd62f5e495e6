"""The controller's database: all writes go through one writer thread with group commit.

A caller queues a write with a `done` callback. The thread commits all queued writes in one
transaction and then calls their callbacks, so that nothing is acknowledged before it is stored.
While the disk is full or the database is locked or unreachable, the thread retries: no write is
dropped, the queue grows, and `Store.problem` holds the cause.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Protocol

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.dialects import postgresql, sqlite

from ones.control import logs
from ones.control.database import Claim, does_not_answer, open_engine, upgrade
from ones.control.heartbeat import Heartbeat
from ones.control.persistence import (
    CordonsChanged,
    Done,
    LiveWrite,
    ProcessesForgotten,
    ReportsReceived,
)
from ones.control.schema import heard, log, mentions, meta, submissions
from ones.control.submission import Submission
from ones.errors import UserError, WorldError

Operation = Callable[[sa.Connection], None]

RETRY_SECONDS = 0.5
#: maximum number of writes in one transaction
MOST_AT_ONCE = 2000
#: key in `meta`: name of the controller that may write, and the number of its last commit
WRITER = "writer"
#: key in `meta`: drained nodes and cordoned GPUs
CORDONS = "asides"
#: key in `meta`: the database to which the contents of this one were moved
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
    operations: tuple[Operation | LiveWrite, ...]
    done: Done | None
    at: float = field(default_factory=time.monotonic)  # when it was queued


@dataclass(slots=True)
class _Stop:
    pass


class LostDatabaseError(WorldError):
    """Another controller writes to the database: this controller must exit."""


class _Turn:
    """Fencing token: makes a commit over a network safe to retry and stops a stale controller.

    Every transaction changes one row from the number of the last commit to its own number. If the
    row has the new number already, an earlier attempt succeeded but its answer was lost. If the
    row has another name, another controller writes to this database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._name = uuid.uuid4().hex
        self._number = 0
        with engine.begin() as connection:
            upsert(meta, {"key": WRITER, "value": self._value(0)})(connection)

    def take(self, connection: sa.Connection) -> bool:
        """Returns False if an earlier attempt has committed this transaction already."""
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
    """Commits writes in the order of their `put`.

    `commit` takes the queued writes and yields the seconds to wait before each retry.
    """

    def put(self, write: _Write) -> None: ...

    def wait(self, waiting: Waiting) -> None:
        """Returns after `waiting` was called; raises the error that it was called with."""

    def close(self) -> None:
        """Returns when all queued writes are committed."""


class WriterThread:
    """The writer that the service uses: a separate thread."""

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
                except Exception:  # without this thread nothing would be acknowledged again
                    logger.exception("a write failed")


class Store:
    """The controller's database. Any thread may read; all writes go through `write`."""

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
        self.problem = ""  # why writes are blocked; empty if they are not
        self.refused = ""  # why an entry of the run log was rejected for good
        self.commits = 0
        self.keeps_environments = True  # else a job's is removed when its last process has ended
        self.heartbeat = Heartbeat("writer")
        self._oldest: float | None = None  # when the oldest write of the current batch was queued
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
        operations: Sequence[Operation | LiveWrite] = (),
        done: Done | None = None,
    ) -> None:
        """Queue a write for the next transaction.

        The writer thread calls `done(None)` after the commit, or `done(error)` if the write failed.
        """
        self._writer.put(_Write(tuple(entries), tuple(operations), done))

    def write_now(self, *operations: Operation) -> None:
        """Write and wait for the commit; raises the error if the write failed."""
        waiting = Waiting()
        self.write(operations=operations, done=waiting)
        self._writer.wait(waiting)

    def flush(self) -> None:
        """Wait until all writes queued before are committed."""
        self.write_now()

    def close(self) -> None:
        self._writer.close()
        self._claim.release()
        self._engine.dispose()

    def unwritten_seconds(self) -> float:
        """How long the oldest write of the current batch has waited."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest

    def _commit(self, batch: list[_Write]) -> Iterator[float]:
        """Commit a batch; yields the seconds to wait before each retry."""
        self._oldest = batch[0].at
        try:
            yield from self._commit_all(batch)
        finally:
            self._oldest = None
            self.heartbeat.waiting()

    def _commit_all(self, batch: list[_Write]) -> Iterator[float]:
        try:
            yield from self._commit_with_retries(batch)
        except Exception as problem:
            if isinstance(problem, LostDatabaseError):
                self._lost = problem
                self.problem = str(problem)
            if len(batch) == 1:
                self._acknowledge(batch, problem)
            else:  # one write failed: commit each alone, so that the others succeed
                for write in batch:
                    yield from self._commit_all([write])
            return
        self._acknowledge(batch, None)

    def _commit_with_retries(self, batch: list[_Write]) -> Iterator[float]:
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
                # disk full, database locked or connection lost: temporary, so retry
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
        """Take the lock again: its session may have been lost together with the writer's."""
        try:
            mine = self._claim.take()
        except WorldError:
            return  # still unreachable
        if not mine:
            raise LostDatabaseError("another controller has taken over the database")

    def _transact(self, batch: list[_Write]) -> None:
        rows = [
            {"number": e.number, "at": e.at, "kind": e.kind, "entry": e.text}
            for write in batch
            for e in write.entries
        ]
        job_mentions = [
            {"job": job, "number": e.number}
            for write in batch
            for e in write.entries
            for job in e.jobs
        ]
        operations = [_in_sql(operation) for write in batch for operation in write.operations]
        if not self.keeps_environments:
            operations += [
                partial(_drop_environment, operation.job)
                for write in batch
                for operation in write.operations
                if isinstance(operation, ProcessesForgotten)
            ]
        if not (rows or operations):
            return
        with self._engine.begin() as connection:
            if self._turn is None or self._turn.take(connection):
                if rows:
                    connection.execute(log.insert(), rows)
                if job_mentions:
                    connection.execute(mentions.insert(), job_mentions)
                _run(operations, connection)
        if self._turn is not None:
            self._turn.taken()
        self.commits += 1

    def _acknowledge(self, batch: list[_Write], problem: Exception | None) -> None:
        for write in batch:
            if problem is not None and write.entries and problem is not self._lost:
                numbers = ", ".join(str(entry.number) for entry in write.entries)
                self.refused = f"the run log does not take entry {numbers}: {problem}"
                logger.error("run log entry refused", entry=numbers, error=str(problem))
            if write.done is None:
                continue
            try:
                write.done(problem)
            except Exception:  # the other writes must still be acknowledged
                logger.exception("an acknowledgement failed")

    # reading

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for reads; a lost connection is raised as a WorldError."""
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

    def cordons(self) -> str | None:
        """Text of the last `CordonsChanged`, or None."""
        rows = self.rows(sa.select(meta.c.value).where(meta.c.key == CORDONS))
        return rows[0].value if rows else None

    def reports_received(self) -> dict[str, ReportsReceived]:
        """The last `ReportsReceived` of each launch, by launch."""
        rows = self.rows(sa.select(heard.c.launch, heard.c.job, heard.c.number, heard.c.joined))
        return {
            row.launch: ReportsReceived(row.launch, row.job, row.number, row.joined) for row in rows
        }

    def entries_after(self, number: int) -> Iterator[tuple[int, str]]:
        """(number, text) of the run-log entries after `number`, in order."""
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
    """A `done` callback for which another thread can wait."""

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
    """An operation that inserts the row, or replaces the row with the same key."""
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


def _in_sql(operation: Operation | LiveWrite) -> Operation:
    match operation:
        case ReportsReceived():
            row = {name: getattr(operation, name) for name in ("launch", "job", "number", "joined")}
            return upsert(heard, row)
        case ProcessesForgotten():
            return delete(heard, {"job": operation.job})
        case CordonsChanged():
            return upsert(meta, {"key": CORDONS, "value": operation.text})
        case _:
            return operation


def _drop_environment(job: str, connection: sa.Connection) -> None:
    """Remove the environment of an ended job, because it may hold secrets."""
    row = submissions.c.job == job
    body = connection.execute(sa.select(submissions.c.body).where(row)).scalar()
    if body is not None and (submission := Submission.decoded(body)).env:
        body = replace(submission, env={}).encoded()
        connection.execute(sa.update(submissions).where(row).values(body=body))


def _run(operations: Iterable[Operation], connection: sa.Connection) -> None:
    """Run the operations in order.

    Consecutive upserts of the same table and columns become one statement; of upserts with the
    same key only the last is run.
    """
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
