"""Open a database: its settings, and its tables as this version of the program wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ones.control.schema import HEAD
from ones.errors import UserError, WorldError

MIGRATIONS = Path(__file__).with_name("migrations")


def connect(url: str) -> sa.Engine:
    """An engine with the settings we rely on, its tables up to date."""
    try:
        engine = sa.create_engine(url)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as problem:
        raise UserError(f"database {url!r}: {problem}") from problem
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _set_pragmas)
        # transactions are ours to begin: the driver's own way commits where we do not expect it
        sa.event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))
    try:
        _upgrade(engine)
    except sa.exc.OperationalError as problem:
        raise WorldError(f"database {engine.url!r}: {problem.orig}") from problem
    return engine


def _set_pragmas(connection: Any, record: object) -> None:  # noqa: ANN401
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


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
                f"database {engine.url!r} is of a newer version of ones ({revision}, here {HEAD})"
            ) from problem


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return str(found) if found is not None else None
