"""Curves of several jobs against epochs, samples or time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.control.readmodels.progress_curves import progress_curves
from ones.control.schema import log, mentions
from ones.control.store import Store, insert
from ones.core import events as ev
from ones.core.cluster import Cluster
from ones.core.job import Generation, JobId
from ones.core.plan import Plan, Start
from ones.core.schedule import Allocation
from ones.runlog import Entry, encode
from tests.control.inside import inside

JOB, NOW = JobId("a-1"), Generation(1)


def epoch(at: float, number: int, loss: float) -> ev.EpochFinished:
    return ev.EpochFinished(
        at=at, job=JOB, generation=NOW, epoch=number, samples=50, steps=5, loss=loss
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'a.db'}")


def written(store: Store, *entries: Entry) -> None:
    for number, entry in enumerate(entries, 1):
        row = {"number": number, "at": entry.at, "kind": type(entry).__name__}
        store.write_now(insert(log, {**row, "entry": encode(entry)}))
        store.write_now(insert(mentions, {"job": JOB, "number": number}))


def start(at: float, number: int, gpus: int) -> Plan:
    allocation = Allocation.even(list(Cluster.of(gpus).gpus()), 16, None)
    return Plan(number=number, at=at, actions=(Start(JOB, allocation),))


def test_the_axis_counts_epochs_samples_or_seconds_since_the_first_start(store: Store) -> None:
    begun = start(100.0, 1, 2)
    written(store, begun, epoch(110.0, 1, 0.9), epoch(130.0, 2, 0.5))
    assert progress_curves(store, JOB, "epochs", 100)["loss"] == [(1, 0.9), (2, 0.5)]
    assert progress_curves(store, JOB, "samples", 100)["loss"] == [(50, 0.9), (100, 0.5)]
    by_time = progress_curves(store, JOB, "time", 100)
    assert by_time["loss"] == [(10.0, 0.9), (30.0, 0.5)]
    assert by_time["gpus"] == [(0.0, 2)]
    assert by_time["batch"] == [(0.0, 16)]
    store.close()


def test_a_start_from_the_beginning_begins_again_at_zero(store: Store) -> None:
    again = ev.TrainingRestarted(140.0, JOB, NOW, 2)
    written(store, start(100.0, 1, 2), epoch(110.0, 1, 0.9), again, epoch(150.0, 1, 0.8))
    found = progress_curves(store, JOB, "epochs", 100)
    assert found["loss"] == [(1, 0.8)]
    assert found["gpus"] == [(0.0, 2)]
    assert progress_curves(store, JOB, "time", 100)["loss"] == [(10.0, 0.9), (50.0, 0.8)]
    store.close()


def test_only_so_many_points_are_sent(store: Store) -> None:
    written(store, start(0.0, 1, 1), *(epoch(float(n), n, 1 / n) for n in range(1, 41)))
    points = progress_curves(store, JOB, "epochs", 10)["loss"]
    assert len(points) <= 11
    assert points[-1] == (40, 1 / 40)
    store.close()


def test_jobs_of_other_users_are_unknown(tmp_path: Path) -> None:
    with inside(tmp_path) as served:
        ann = served.add_user("ann")
        mine = served.submit(headers=ann).json()["id"]
        other = served.submit().json()["id"]
        found = served.http.get("/api/curves", params={"job": [mine]}, headers=ann)
        assert [job["id"] for job in found.json()["jobs"]] == [mine]
        both = {"job": [mine, other]}
        assert served.http.get("/api/curves", params=both, headers=ann).status_code == 404
        shown = served.http.get("/api/curves", params={**both, "against": "time"}).json()
        assert (shown["against"], len(shown["jobs"])) == ("time", 2)
        assert served.http.get("/api/curves").status_code == 422
        assert served.http.get("/api/curves", params={"job": ["a"] * 51}).status_code == 422
