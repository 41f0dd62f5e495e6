"""A real PostgreSQL for tests, one for all tests of a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from ones.control.database import open_engine

TOOL = Path(__file__).parents[1] / "tools" / "postgres"


class Postgres:
    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self._numbers = count(1)

    def new_database(self) -> str:
        """Its URL."""
        name = f"test{next(self._numbers)}"
        engine = open_engine(self._url)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return f"{self._url.rpartition('/')[0]}/{name}"

    def restart(self) -> None:
        """At once, as after a crash: all connections are cut."""
        _tool("restart", self._directory)


def _tool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if not (list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb")):
        pytest.skip("PostgreSQL is not installed: tools/system-packages")
    # not below pytest's directory: the user that PostgreSQL runs as may not read it
    with tempfile.TemporaryDirectory(prefix="ones-postgres-") as name:
        os.chmod(name, 0o755)
        directory = Path(name, "cluster")
        url = _tool("start", directory)
        try:
            yield Postgres(directory, url)
        finally:
            _tool("stop", directory)
