"""What every store promises: what was acknowledged is there, in order, once; whatever happens.

On SQLite, and on a PostgreSQL that tools/postgres starts.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ones.control.audit import Audit
from ones.control.database import connect, open_engine
from ones.control.moving import move
from ones.control.recorder import begin, recover
from ones.control.schema import (
    HEAD,
    audit,
    heard,
    log,
    mentions,
    meta,
    metadata,
    outcomes,
    snapshots,
    users,
)
from ones.control.store import Entry, LostDatabaseError, Store, Waiting, insert, upsert
from ones.core import Brain, Cluster, Plan, drive
from ones.core import events as ev
from ones.core.job import SwitchCost
from ones.errors import UserError, WorldError
from ones.policies import create
from ones.runlog import VERSION, Header, decode
from tests.chaos import ChaosEngine
from tests.databases import Postgres
from tests.invariants import check_invariants
from tests.processes import PATIENCE, wait_for

CLUSTER = Cluster.of(8)
HEADER = Header(
    version=VERSION,
    software="0",
    policy="equi",
    seed=1,
    nodes=tuple(CLUSTER.nodes.values()),
    switch_cost=SwitchCost(),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ones.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


def entry(number: int, *jobs: str) -> Entry:
    return Entry(number, float(number), "Woke", f"entry {number}", jobs)


def test_entries_come_back_in_order_and_are_found_by_job(store: Store) -> None:
    for number in range(1, 101):
        store.write([entry(number, "a", "b") if number % 10 == 0 else entry(number, "a")])
    store.flush()
    assert [n for n, _ in store.entries_after(40)] == list(range(41, 101))
    assert store.last_number() == 100
    spoken = store.rows(sa.select(mentions.c.number).where(mentions.c.job == "b"))
    assert [row.number for row in spoken] == list(range(10, 101, 10))


def test_what_replaces_one_another_in_one_commit_ends_as_if_written_one_by_one(
    store: Store,
) -> None:
    gate = threading.Event()

    def hold(connection: sa.Connection) -> None:
        gate.wait()

    def row(launch: str, number: int) -> dict[str, Any]:
        return {"launch": launch, "job": "a", "number": number, "joined": number > 1}

    def forget(connection: sa.Connection) -> None:
        connection.execute(heard.delete().where(heard.c.launch == "x"))

    store.write(operations=[hold])
    for number in range(1, 4):
        store.write(operations=[upsert(heard, row("x", number)), upsert(heard, row("y", number))])
    store.write(operations=[forget, upsert(heard, row("z", 7))])
    store.write(operations=[upsert(meta, {"key": "k", "value": "1"})])
    store.write(operations=[upsert(heard, row("z", 8)), upsert(heard, row("x", 9))])
    before = store.commits
    gate.set()
    store.flush()
    assert store.commits - before <= 2
    found = store.rows(sa.select(heard).order_by(heard.c.launch))
    assert [(r.launch, r.number, r.joined) for r in found] == [
        ("x", 9, True), ("y", 3, True), ("z", 8, True),
    ]  # fmt: skip


def test_many_writes_share_one_commit(store: Store) -> None:
    gate = threading.Event()

    def wait(connection: sa.Connection) -> None:
        gate.wait()

    store.write(operations=[wait])
    waiting = [Waiting() for _ in range(200)]
    for number, done in enumerate(waiting, 1):
        store.write([entry(number)], done=done)
    before = store.commits
    gate.set()
    for done in waiting:
        done.wait(PATIENCE)
    assert store.commits - before <= 3


def test_what_belongs_together_is_written_together_or_not_at_all(store: Store) -> None:
    row = {"name": "ann", "role": "user", "token_hash": "x", "created_at": 0.0}
    store.write([entry(1)], [insert(users, row)])
    store.flush()
    refused = Waiting()
    store.write([entry(2)], [insert(users, row)], refused)
    store.write([entry(3)])
    with pytest.raises(sa.exc.IntegrityError):
        refused.wait(PATIENCE)
    store.flush()
    assert [n for n, _ in store.entries_after(0)] == [1, 3], "the others do not suffer"


def test_upsert_replaces(store: Store) -> None:
    for role in ("user", "admin"):
        row = {"name": "ann", "role": role, "token_hash": "x", "created_at": 0.0}
        store.write_now(upsert(users, row))
    assert [r.role for r in store.rows(sa.select(users))] == ["admin"]


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(url: str, tmp_path: Path) -> None:
    """A process that says which entries are safe, and dies in the middle of it."""
    code = textwrap.dedent(
        f"""
        from ones.control.store import Entry, Store
        store = Store({url!r})
        number = 0
        while True:
            number += 1
            def done(problem, number=number):
                print(number, flush=True)
            store.write([Entry(number, float(number), "Woke", "x")], done=done)
            if number % 50 == 0:
                store.flush()
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    safe = 0
    for line in process.stdout:
        safe = int(line)
        if safe >= 300:
            break
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split("\n")
    process.stdout.close()
    process.wait()
    safe = max([safe, *(int(text) for text in rest[:-1])])
    store = Store(url)
    numbers = [n for n, _ in store.entries_after(0)]
    store.close()
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= safe


def test_migrations_make_the_tables_that_the_program_wants(url: str) -> None:
    engine = connect(url)
    found = sa.inspect(engine)
    for table in metadata.tables.values():
        columns = {c["name"]: bool(c["nullable"]) for c in found.get_columns(table.name)}
        assert columns == {c.name: bool(c.nullable) for c in table.columns}, table.name
        indexes = {str(i["name"]) for i in found.get_indexes(table.name)}
        assert {str(i.name) for i in table.indexes} <= indexes
    engine.dispose()
    connect(url).dispose()  # a second time there is nothing to do


def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    engine = connect(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(UserError, match=rf"newer version of ones \(9999, here {HEAD}\)"):
        connect(url)


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


@pytest.mark.parametrize("tail", [5, 40, 10**9])
def test_a_brain_comes_back_as_it_was(url: str, tail: int) -> None:
    """Recorded in a world in which anything happens; with snapshots of any spacing."""
    store = Store(url)
    header = begin(store, HEADER)
    brain, recorder = recover(store, header, create("equi", seed=1), lambda jobs, workers: tail)
    drive(brain, ChaosEngine(CLUSTER, 12, seed=5, trouble=0.15), recorder)
    store.close()
    store = Store(url)
    assert begin(store, HEADER) == header
    again, recorder = recover(store, header, create("equi", seed=1))
    check_invariants(again.state)
    assert again.state.snapshot() == brain.state.snapshot()
    assert again.policy.save() == brain.policy.save()
    assert len(store.rows(sa.select(snapshots.c.number))) == (2 if tail < 100 else 0)
    written = [r.job for r in store.rows(sa.select(outcomes.c.job).order_by("position"))]
    assert written == list(brain.state.ended)[: len(written)]
    last = store.last_number()
    recorder(ev.Woke(again.state.now + 1))
    store.flush()
    assert store.last_number() == last + 1
    store.close()


def test_the_log_in_the_database_replays_to_the_same_plans(store: Store) -> None:
    begin(store, HEADER)
    brain, recorder = recover(store, HEADER, create("equi", seed=1))
    drive(brain, ChaosEngine(CLUSTER, 6, seed=3), recorder)
    store.flush()
    fresh = Brain(CLUSTER, create("equi", seed=1))
    made: list[Plan] = []
    for _, text in store.entries_after(0):
        line = decode(text)
        if isinstance(line, Plan):
            assert made.pop() == line
        else:
            assert not isinstance(line, Header)
            plan = fresh.handle(line)
            if not plan.says_nothing:
                made.append(plan)
    assert not made
    assert store.rows(sa.select(sa.func.count()).select_from(log))[0][0] > 50


# PostgreSQL, and from one to the other


def test_one_controller_for_each_database(postgres: Postgres) -> None:
    url = postgres.new_database()
    first = Store(url)
    with pytest.raises(UserError, match=r"another controller is running on it \(ones on .*, pid"):
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


def test_a_commit_whose_answer_was_lost_is_not_done_twice(postgres: Postgres) -> None:
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
    brain, recorder = recover(store, HEADER, create("equi", seed=1), lambda jobs, workers: 20)
    drive(brain, ChaosEngine(CLUSTER, 6, seed=3), recorder)
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
    assert again.state.snapshot() == brain.state.snapshot()
    (ann,) = store.rows(sa.select(users))
    assert (ann.token_hash, ann.created_at) == ("\u2713", 1 / 3)
    store.close()
    with pytest.raises(UserError, match=r"was moved to postgresql://ones:\*\*\*@.*--database"):
        Store(url)
    with pytest.raises(UserError, match=r"was moved to .* before"):
        move(url, postgres.new_database())


def test_move_refuses_a_database_that_is_not_empty_or_in_use(
    tmp_path: Path, postgres: Postgres
) -> None:
    source, target = f"sqlite:///{tmp_path}/ones.db", postgres.new_database()
    store = Store(source)
    store.write([entry(1)])
    store.close()
    busy = Store(target)
    with pytest.raises(UserError, match="another controller is running on it"):
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


def test_the_database_refuses_to_change_the_audit(store: Store) -> None:
    kept = Audit(store, lambda: 1.0)
    kept.record("ann", "login")
    for statement in (sa.update(audit).values(who="bob"), sa.delete(audit)):
        with pytest.raises(sa.exc.DBAPIError, match="rows are only added"):
            store.write_now(partial(_execute, statement))
    kept.record("ann", "shutdown")
    assert [(row.number, row.who) for row in kept.rows(10)] == [(2, "ann"), (1, "ann")]


def _execute(statement: sa.Executable, connection: sa.Connection) -> None:
    connection.execute(statement)
