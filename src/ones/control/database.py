"""Opens a database: its settings, its migrations, and the lock that lets one controller write."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ones.control.schema import HEAD
from ones.errors import UserError, WorldError
from ones.extras import missing_extras

MIGRATIONS = Path(__file__).with_name("migrations")

#: number of PostgreSQL's advisory lock: "ones" in ASCII
LOCK_KEY = 0x6F6E6573
#: how long the session of a killed controller may live on
LOCK_SECONDS = 1.0
#: an unreachable machine loses its session, and with it the lock, within half a minute
KEEP_ALIVE = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"


def connect(url: str) -> sa.Engine:
    """An engine with the required settings and up-to-date tables."""
    engine = open_engine(url)
    try:
        upgrade(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def open_engine(url: str) -> sa.Engine:
    """An engine with the required settings; does not connect."""
    shown = hidden(url)
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as problem:
        raise UserError(f"database {shown!r} is not a URL") from problem
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        # parameters have users' environments: errors and logs must not show them
        engine = prepared(sa.create_engine(parsed, hide_parameters=True))
        sa.event.listen(engine, "do_connect", _make_private)
        return engine
    if kind not in ("postgresql", "postgres"):
        raise UserError(f"database {shown!r}: {kind} is not one of sqlite, postgresql")
    try:
        return sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            hide_parameters=True,
            pool_pre_ping=True,  # a restart of the server leaves dead connections in the pool
            connect_args={
                "connect_timeout": 10,
                "application_name": f"ones on {socket.gethostname()}, pid {os.getpid()}",
                "options": KEEP_ALIVE,
            },
        )
    except ModuleNotFoundError as problem:
        raise UserError(missing_extras(f"database {shown!r}", ["postgres"])) from problem


def prepared(engine: sa.Engine) -> sa.Engine:
    """A SQLite engine with the required settings."""
    sa.event.listen(engine, "connect", _set_pragmas)
    # begin transactions explicitly: the driver's own way commits at unexpected points
    sa.event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))
    return engine


def hidden(url: str) -> str:
    """The URL with its password hidden.

    >>> hidden("postgresql://ann:secret@db/ones")
    'postgresql://ann:***@db/ones'
    """
    return re.sub(r"(://[^:/@]*):[^/]*@", r"\1:***@", url)


def _make_private(dialect: object, record: object, arguments: Any, named: object) -> None:  # noqa: ANN401
    """Create the file, readable by its owner only; SQLite's -wal and -shm files get its mode."""
    path = str(arguments[0])
    if path and not path.startswith((":", "file:")):
        with suppress(OSError):  # SQLite's own error is better
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _set_pragmas(connection: Any, record: object) -> None:  # noqa: ANN401
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def upgrade(engine: sa.Engine) -> None:
    """Create the tables, or migrate them to this version."""
    try:
        _upgrade(engine)
    except sa.exc.OperationalError as problem:
        raise does_not_answer(engine, problem) from problem


def does_not_answer(engine: sa.Engine, problem: sa.exc.DBAPIError) -> WorldError:
    lines = str(problem.orig).strip().splitlines()
    return WorldError(f"database {engine.url!r}: {lines[0] if lines else 'does not respond'}")


def _upgrade(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        revision = _revision(connection)
    if revision == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as problem:
            raise UserError(
                f"database {engine.url!r} has revision {revision} of a newer version of ones (this"
                f" one knows {HEAD}); install that version"
            ) from problem


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return str(found) if found is not None else None


class Claim:
    """The lock of a database: one controller per database. It ends with the session of its process.

    SQLite needs no lock: its file is in the state directory, which has one.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._session: sa.Connection | None = None
        self.needed = engine.dialect.name != "sqlite"
        if not self.needed:
            return
        deadline = time.monotonic() + LOCK_SECONDS
        while not self.take():
            if time.monotonic() > deadline:
                raise UserError(
                    f"database {engine.url!r} is used by another controller{self._holder()};"
                    " stop that one first"
                )
            time.sleep(0.1)

    def take(self) -> bool:
        """Take the lock, also again after a lost session. False: another controller has it."""
        if not self.needed:
            return True
        try:
            if self._session is not None:
                self._session.execute(sa.select(1))
                return True
        except sa.exc.DBAPIError:
            self.release()
        try:
            session: sa.Connection | None = self._engine.connect()
        except sa.exc.OperationalError as problem:
            raise does_not_answer(self._engine, problem) from problem
        assert session is not None
        try:
            session = session.execution_options(isolation_level="AUTOCOMMIT")
            if session.execute(sa.select(sa.func.pg_try_advisory_lock(LOCK_KEY))).scalar():
                self._session, session = session, None
        except sa.exc.DBAPIError as problem:
            raise does_not_answer(self._engine, problem) from problem
        finally:
            if session is not None:
                session.close()
        return self._session is not None

    def release(self) -> None:
        if self._session is not None:
            self._session.invalidate()  # not returned to the pool: the session has the lock
            self._session.close()
            self._session = None

    def _holder(self) -> str:
        query = sa.text(
            "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.locktype = 'advisory' AND l.objid = :key AND a.datname = current_database()"
        )
        with self._engine.connect() as connection:
            name = connection.execute(query, {"key": LOCK_KEY}).scalar()
        return f" ({name})" if name else ""
