"""The contract of stores, on SQLite and on a PostgreSQL that tools/postgres starts; and what is
special about each."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ones.control.database import open_engine
from ones.control.database_copy import move
from ones.control.recorder import begin, recover
from ones.control.schema import users
from ones.control.store import Entry, LostDatabaseError, Store, Waiting, upsert
from ones.core import drive
from ones.errors import UserError, WorldError
from ones.policies import create
from ones.testing import StoreContract
from ones.testing.chaos import ChaosEngine
from ones.testing.store import CLUSTER, HEADER, entry
from tests.databases import Postgres
from tests.processes import PATIENCE, wait_for


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ones.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/ones.db"


class TestPostgresql(StoreContract):
    @pytest.fixture
    def url(self, postgres: Postgres) -> str:
        return postgres.new_database()


def test_a_full_disk_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    store.write([entry(1)])
    store.flush()

    # SQLite's own limit of pages stands in for a full disk: the same error, the same way back
    def limit(pages: int) -> None:
        def operation(connection: sa.Connection) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        store.write_now(operation)

    limit(1)  # SQLite takes the present size instead
    done = Waiting()
    big = Entry(2, 2.0, "Woke", "x" * 200_000)
    store.write([big], done=done)
    wait_for(lambda: "database or disk is full" in store.problem, "the writer has not noticed")
    with pytest.raises(TimeoutError):
        done.wait(0.1)
    other = sqlite3.connect(tmp_path / "ones.db")
    assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    other.close()
    # space returns: the limit is one of the connection, which the writer opens anew
    store._engine.dispose()
    done.wait(PATIENCE)
    assert store.problem == ""
    assert [n for n, _ in store.entries_after(0)] == [1, 2]
    store.close()


def test_one_controller_for_each_database(postgres: Postgres) -> None:
    url = postgres.new_database()
    first = Store(url)
    with pytest.raises(UserError, match=r"is used by another controller \(ones on .*, pid"):
        Store(url)
    first.close()
    Store(url).close()


def test_a_database_that_restarts_is_waited_for_and_every_write_counts_once(
    postgres: Postgres,
) -> None:
    store = Store(postgres.new_database())
    written = threading.Event()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.write([entry(number, "a")])
            store.flush()
            if number == 50:
                written.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert written.wait(60)
    for _ in range(3):
        enough = store.commits + 5
        postgres.restart()
        wait_for(partial(_has_written, store, enough), "writing did not go on")
    stop.set()
    writer.join()
    store.flush()
    numbers = [n for n, _ in store.entries_after(0)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert store.problem == ""
    store.close()


def _has_written(store: Store, commits: int) -> bool:
    return store.commits > commits


def test_a_commit_with_a_lost_answer_is_not_done_twice(postgres: Postgres) -> None:
    store = Store(postgres.new_database())
    store.write([entry(1)])
    store.flush()
    lost: list[bool] = []

    def cut(connection: sa.Connection) -> None:
        """As the first commit after this one seems to fail, though it went through."""
        if not lost:
            lost.append(True)
            raise sa.exc.OperationalError("COMMIT", None, Exception("the line was cut"))

    sa.event.listen(store._engine, "commit", _committed_then(cut))
    store.write([entry(2)])
    store.flush()
    assert lost
    assert [n for n, _ in store.entries_after(0)] == [1, 2]
    store.close()


def _committed_then(cut: Callable[[sa.Connection], None]) -> Callable[[sa.Connection], None]:
    def after(connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.commit()
        cut(connection)

    return after


def test_a_controller_that_lost_the_database_to_another_writes_no_more(postgres: Postgres) -> None:
    url = postgres.new_database()
    stale = Store(url)
    stale.write([entry(1)])
    stale.flush()
    # its session dies, with the lock, as after a long cut of the network
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    engine.dispose()
    fresh = Store(url)
    fresh.write([entry(2)])
    fresh.flush()
    stale.write([entry(2)])
    with pytest.raises(LostDatabaseError, match="another controller"):
        stale.flush()
    stale.close()
    assert [n for n, _ in fresh.entries_after(0)] == [1, 2]
    fresh.close()


def test_what_is_wrong_with_a_database_is_said_without_its_password() -> None:
    for url, words in (
        ("mysql://ann:secret@db/x", "mysql is not one of sqlite, postgresql"),
        ("postgresql://ann:secret@127.0.0.1:1/x", "connection .*failed"),
        ("nonsense", "'nonsense' is not a URL"),
    ):
        with pytest.raises((UserError, WorldError), match=words) as problem:
            Store(url)
        assert "secret" not in str(problem.value)


def test_move_copies_everything_once(url: str, postgres: Postgres) -> None:
    store = Store(url)
    begin(store, HEADER)
    scheduler, recorder = recover(store, HEADER, create("equi", seed=1), lambda jobs, workers: 20)
    drive(scheduler, ChaosEngine(CLUSTER, 6, seed=3), recorder)
    store.write_now(
        upsert(users, {"name": "ann", "role": "user", "token_hash": "\u2713", "created_at": 1 / 3})
    )
    store.close()
    target = postgres.new_database()
    seen: list[tuple[str, int, int]] = []
    rows = move(url, target, lambda *told: seen.append(told))
    assert rows["log"] > 50
    assert ("log", rows["log"], rows["log"]) in seen
    store = Store(target)
    again, _ = recover(store, HEADER, create("equi", seed=1))
    assert again.state.snapshot() == scheduler.state.snapshot()
    (ann,) = store.rows(sa.select(users))
    assert (ann.token_hash, ann.created_at) == ("\u2713", 1 / 3)
    store.close()
    with pytest.raises(UserError, match=r"was moved to postgresql://ones:\*\*\*@.*--database"):
        Store(url)
    with pytest.raises(UserError, match=r"was already moved to "):
        move(url, postgres.new_database())


def test_move_refuses_a_database_that_is_not_empty_or_in_use(
    tmp_path: Path, postgres: Postgres
) -> None:
    source, target = f"sqlite:///{tmp_path}/ones.db", postgres.new_database()
    store = Store(source)
    store.write([entry(1)])
    store.close()
    busy = Store(target)
    with pytest.raises(UserError, match="is used by another controller"):
        move(source, target)
    busy.write([entry(1, "a")])
    busy.close()
    with pytest.raises(UserError, match=r"is not empty: 1 rows in (log|mentions)"):
        move(source, target)
    Store(source).close()  # and nothing was moved


@pytest.mark.slow
def test_the_service_runs_on_postgresql_and_moves_there(tmp_path: Path, postgres: Postgres) -> None:
    """The commands of the guide."""
    url = postgres.new_database()
    ones = str(Path(sys.executable).with_name("ones"))
    env = {**os.environ, "ONES_SERVICE_STATE": str(tmp_path / "state")}

    def run(*command: str) -> str:
        done = subprocess.run(
            [ones, *command], env=env, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    up = ("up", "--slots", "1", "--port", "0", "--policy", "fifo")
    run(*up)
    run("submit", "--", "true")
    run("down")
    assert "moved" in run("store", "move", url)
    run(*up, "--database", url)
    assert "true-1" in run("ps", "--all")
    run("down")
