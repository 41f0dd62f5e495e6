"""Exports the run log of a database as a file of JSON lines, which `ones sim --workload` reads."""

from __future__ import annotations

from pathlib import Path

from ones.control.archive import entries, header_of
from ones.control.database import connect
from ones.errors import InvalidFileError, WorldError
from ones.runlog import encode


def write_run_log(database: str, path: Path) -> int:
    """Write all entries of the database and return their number. The service may be running."""
    engine = connect(database)
    beside = path.with_name(path.name + ".part")
    try:
        with engine.connect() as connection:
            header, _ = header_of(connection)
            count = 0
            with beside.open("w", encoding="utf-8") as file:
                file.write(encode(header) + "\n")
                for text in entries(connection):
                    file.write(text + "\n")
                    count += 1
        beside.replace(path)
    except IsADirectoryError as problem:
        raise InvalidFileError(path, "is a directory, not a file") from problem
    except OSError as problem:
        raise WorldError(f"{path}: cannot be written: {problem.strerror}") from problem
    finally:
        beside.unlink(missing_ok=True)
        engine.dispose()
    return count
