"""The run log of a database as a file of JSON lines: what `ones sim --workload` reads."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from ones.control.database import connect
from ones.control.recorder import HEADER
from ones.control.schema import log, meta
from ones.errors import InvalidFileError, UserError, WorldError


def write_run_log(database: str, path: Path) -> int:
    """All entries up to now, and their number. The service may be running."""
    engine = connect(database)
    beside = path.with_name(path.name + ".part")
    try:
        with engine.connect() as connection:
            header = connection.execute(sa.select(meta.c.value).where(meta.c.key == HEADER))
            first = header.scalar()
            if first is None:
                raise UserError(f"{engine.url!r}: no service has run with this database")
            entries = 0
            with beside.open("w", encoding="utf-8") as file:
                file.write(first + "\n")
                query = sa.select(log.c.entry).order_by(log.c.number)
                for text in connection.execution_options(yield_per=1000).execute(query).scalars():
                    file.write(text + "\n")
                    entries += 1
        beside.replace(path)
    except IsADirectoryError as problem:
        raise InvalidFileError(path, "is a directory, not a file") from problem
    except OSError as problem:
        raise WorldError(f"{path}: cannot be written: {problem.strerror}") from problem
    finally:
        beside.unlink(missing_ok=True)
        engine.dispose()
    return entries
