"""Old events go into compressed files, up to a snapshot, and both parts stay readable."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from ones.control.archive import DAY, Window, archive
from ones.control.recorder import begin, recover
from ones.control.run_log_export import write_run_log
from ones.control.schema import snapshots
from ones.control.store import Store, upsert
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.job import EndReason, Job, JobId, SwitchCost
from ones.policies import create
from ones.runlog import VERSION, Header, RunLog, replay

HEADER = Header(
    version=VERSION, software="0", policy="equi", seed=1, nodes=(), switch_cost=SwitchCost()
)
HOUR = 3600.0


def lived(store: Store, days: int) -> ev.Event:
    """A service that has had a job every hour, with a snapshot about every ten events."""
    begin(store, HEADER)
    scheduler, recorder = recover(store, HEADER, create("equi", seed=1), lambda jobs, workers: 10)

    def happen(event: ev.Event) -> None:
        recorder(event)
        plan = scheduler.handle(event)
        if not plan.says_nothing:
            recorder(plan)

    happen(ev.NodeUp(0.0, NodeId("n0"), 4))
    event: ev.Event = ev.Woke(0.0)
    for hour in range(24 * days):
        at = hour * HOUR
        job = JobId(f"job-{hour}")
        happen(ev.JobSubmitted(at, Job(id=job, submitted_at=at)))
        record = scheduler.state.records[job]
        assert record.in_flight is not None
        assert record.in_flight.allocation is not None
        gpus = record.in_flight.allocation.gpus
        for gpu in gpus:
            happen(ev.WorkerReady(at, job, record.generation, gpu))
        happen(ev.JobEnded(at + 10.0, job, EndReason.FINISHED))
        for gpu in gpus:
            event = ev.WorkerLeft(at + 10.0, job, record.generation, gpu)
            happen(event)
    store.flush()
    return event


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/ones.db")


def test_what_is_older_goes_into_a_file_and_the_rest_begins_with_a_snapshot(
    store: Store, tmp_path: Path
) -> None:
    last = lived(store, days=6)
    entries = store.last_number()
    before, _ = recover(store, HEADER, create("equi", seed=1))
    window = archive(store, tmp_path / "archive", days=2.0, now=last.at)
    assert isinstance(window, Window)
    assert window.first == 1
    assert store.first_number() == window.last + 1
    assert 0.5 < window.last / entries < 0.75, "about four of six days"
    kept = list(RunLog(window.path))
    assert len(kept) == window.last
    assert kept[-1].at <= last.at - 2.0 * DAY
    assert window.path.stat().st_mode & 0o777 == 0o600
    old = replay(RunLog(window.path), create("equi", seed=1))
    assert (old.difference, old.plans > 0) == (None, True)
    after, _ = recover(store, HEADER, create("equi", seed=1))
    assert after.state.snapshot() == before.state.snapshot()
    write_run_log(f"sqlite:///{tmp_path}/ones.db", tmp_path / "run.jsonl")
    log = RunLog(tmp_path / "run.jsonl")
    assert log.header.first == window.last + 1
    rest = replay(log, create("equi", seed=1))
    assert (rest.difference, rest.plans > 0) == (None, True)
    assert archive(store, tmp_path / "archive", days=2.0, now=last.at) is None
    again = archive(store, tmp_path / "archive", days=1.0, now=last.at)
    assert again is not None
    assert again.first == window.last + 1
    assert replay(RunLog(again.path), create("equi", seed=1)).difference is None
    store.close()


def test_by_default_everything_stays(store: Store, tmp_path: Path) -> None:
    lived(store, days=3)
    assert archive(store, tmp_path / "archive", days=0.0, now=1e9) is None
    assert store.first_number() == 1
    assert not (tmp_path / "archive").exists()
    store.close()


def test_a_snapshot_that_cannot_be_read_is_passed_over(store: Store) -> None:
    lived(store, days=1)
    before, _ = recover(store, HEADER, create("equi", seed=1))
    rows = store.rows(sa.select(snapshots.c.number).order_by(snapshots.c.number.desc()))
    assert len(rows) > 1
    store.write_now(upsert(snapshots, {"number": rows[0].number, "body": '{"state": 7}'}))
    after, recorder = recover(store, HEADER, create("equi", seed=1), lambda jobs, workers: 1)
    assert after.state.snapshot() == before.state.snapshot()
    recorder(ev.Woke(after.state.now))
    recorder(ev.Woke(after.state.now))
    store.flush()
    for row in rows:
        store.write_now(upsert(snapshots, {"number": row.number, "body": "not JSON"}))
    again, _ = recover(store, HEADER, create("equi", seed=1))
    assert again.state.snapshot() == after.state.snapshot()
    store.close()
