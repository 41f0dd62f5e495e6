"""Contract suite of stores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from ones.control.audit import Audit
from ones.control.database import connect
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
from ones.control.store import Entry, Store, Waiting, insert, upsert
from ones.core import Cluster, Plan, Scheduler, drive
from ones.core import events as ev
from ones.core.job import SwitchCost
from ones.errors import UserError
from ones.policies import create
from ones.runlog import VERSION, Header, decode
from ones.testing.chaos import ChaosEngine
from ones.testing.invariants import check_invariants
from ones.testing.processes import PATIENCE

CLUSTER = Cluster.of(8)

HEADER = Header(
    version=VERSION,
    software="0",
    policy="equi",
    seed=1,
    nodes=tuple(CLUSTER.nodes.values()),
    switch_cost=SwitchCost(),
)


def entry(number: int, *jobs: str) -> Entry:
    return Entry(number, float(number), "Woke", f"entry {number}", jobs)


class StoreContract:
    """Override the fixture `url`: the URL of an empty database, a new one for each test.

    A store keeps every acknowledged entry, in order and once, also after a crash. It writes an
    entry and its rows in one transaction, and recovers the scheduler's state.
    """

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = Store(url)
        yield store
        store.close()

    def test_entries_come_back_in_order_and_are_found_by_job(self, store: Store) -> None:
        for number in range(1, 101):
            store.write([entry(number, "a", "b") if number % 10 == 0 else entry(number, "a")])
        store.flush()
        assert [n for n, _ in store.entries_after(40)] == list(range(41, 101))
        assert store.last_number() == 100
        spoken = store.rows(sa.select(mentions.c.number).where(mentions.c.job == "b"))
        assert [row.number for row in spoken] == list(range(10, 101, 10))

    def test_what_replaces_one_another_in_one_commit_ends_as_if_written_one_by_one(
        self,
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
            store.write(
                operations=[upsert(heard, row("x", number)), upsert(heard, row("y", number))]
            )
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

    def test_many_writes_share_one_commit(self, store: Store) -> None:
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

    def test_what_belongs_together_is_written_together_or_not_at_all(self, store: Store) -> None:
        row = {"name": "ann", "role": "user", "token_hash": "x", "created_at": 0.0}
        store.write([entry(1)], [insert(users, row)])
        store.flush()
        refused = Waiting()
        store.write([entry(2)], [insert(users, row)], refused)
        store.write([entry(3)])
        with pytest.raises(sa.exc.IntegrityError):
            refused.wait(PATIENCE)
        store.flush()
        assert [n for n, _ in store.entries_after(0)] == [1, 3], "other writes are not affected"

    def test_upsert_replaces(self, store: Store) -> None:
        for role in ("user", "admin"):
            row = {"name": "ann", "role": role, "token_hash": "x", "created_at": 0.0}
            store.write_now(upsert(users, row))
        assert [r.role for r in store.rows(sa.select(users))] == ["admin"]

    def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(self, url: str) -> None:
        """A process prints the acknowledged entries until it is killed."""
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

    def test_migrations_make_the_tables_that_the_program_wants(self, url: str) -> None:
        engine = connect(url)
        found = sa.inspect(engine)
        for table in metadata.tables.values():
            columns = {c["name"]: bool(c["nullable"]) for c in found.get_columns(table.name)}
            assert columns == {c.name: bool(c.nullable) for c in table.columns}, table.name
            indexes = {str(i["name"]) for i in found.get_indexes(table.name)}
            assert {str(i.name) for i in table.indexes} <= indexes
        engine.dispose()
        connect(url).dispose()  # the second migration changes nothing

    def test_a_database_of_a_newer_version_is_refused(self, url: str) -> None:
        engine = connect(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        engine.dispose()
        newer = rf"revision 9999 of a newer version of ones .*{HEAD}"
        with pytest.raises(UserError, match=newer):
            connect(url)

    @pytest.mark.parametrize("tail", [5, 40, 10**9])
    def test_the_scheduler_is_recovered_as_it_was(self, url: str, tail: int) -> None:
        """Recorded with random failures, and with snapshots at different intervals."""
        store = Store(url)
        header = begin(store, HEADER)
        scheduler, recorder = recover(
            store, header, create("equi", seed=1), lambda jobs, workers: tail
        )
        drive(scheduler, ChaosEngine(CLUSTER, 12, seed=5, trouble=0.15), recorder)
        store.close()
        store = Store(url)
        assert begin(store, HEADER) == header
        again, recorder = recover(store, header, create("equi", seed=1))
        check_invariants(again.state)
        assert again.state.snapshot() == scheduler.state.snapshot()
        assert again.policy.save() == scheduler.policy.save()
        assert len(store.rows(sa.select(snapshots.c.number))) == (2 if tail < 100 else 0)
        written = [r.job for r in store.rows(sa.select(outcomes.c.job).order_by("position"))]
        assert written == list(scheduler.state.ended)[: len(written)]
        last = store.last_number()
        recorder(ev.Woke(again.state.now + 1))
        store.flush()
        assert store.last_number() == last + 1
        store.close()

    def test_the_log_in_the_database_replays_to_the_same_plans(self, store: Store) -> None:
        begin(store, HEADER)
        scheduler, recorder = recover(store, HEADER, create("equi", seed=1))
        drive(scheduler, ChaosEngine(CLUSTER, 6, seed=3), recorder)
        store.flush()
        fresh = Scheduler(CLUSTER, create("equi", seed=1))
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

    def test_the_database_refuses_to_change_the_audit(self, store: Store) -> None:
        kept = Audit(store, lambda: 1.0)
        kept.record("ann", "login")
        for statement in (sa.update(audit).values(who="bob"), sa.delete(audit)):
            with pytest.raises(sa.exc.DBAPIError, match="rows are only added"):
                store.write_now(partial(_execute, statement))
        kept.record("ann", "shutdown")
        assert [(row.number, row.who) for row in kept.rows(10)] == [(2, "ann"), (1, "ann")]


def _execute(statement: sa.Executable, connection: sa.Connection) -> None:
    connection.execute(statement)
