"""The use of the cluster over time: exact means, bounded size, kept over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from ones.control.cluster_history import RESOLUTIONS, ClusterHistory
from ones.control.readmodels.job_cards import JobCard, WorkerCard
from ones.control.schema import meta
from ones.control.store import Store, upsert
from tests.control.inside import inside

DAY = 86_400.0
BEGIN = 20_000 * DAY


def card(job: str, gpus: int = 0, *, ended_at: float | None = None) -> JobCard:
    return JobCard(
        id=job, name=job, owner="ann", elastic=True, kind="k", command=(), tags=(),
        state="finished" if ended_at else "running" if gpus else "waiting",
        priority=0.0, min_gpus=1, max_gpus=None, dataset_size=None, batch=None,
        workers=tuple(WorkerCard(gpu=f"n/{i}", batch=1) for i in range(gpus)),
        eta=None, eta_low=None, eta_high=None, note="", message="",
        submitted_at=BEGIN, ended_at=ended_at, booked_at=BEGIN,
    )  # fmt: skip


class Watched:
    """A history with a clock, a cluster and a number of decisions that the test sets."""

    def __init__(self, directory: Path) -> None:
        self.now, self.gpus, self.decisions = BEGIN, 4, 0
        self.store = Store(f"sqlite:///{directory / 'a.db'}")
        self.history = self.opened()

    def opened(self) -> ClusterHistory:
        return ClusterHistory(
            self.store, lambda: self.now, lambda: self.gpus, lambda: self.decisions
        )


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.store.close()


def test_an_interval_has_exact_means(watched: Watched) -> None:
    history = watched.history
    watched.now += 15
    history.take(card("a", 2))  # from 15 s on
    history.take(card("b"))
    watched.now += 15
    watched.decisions += 3
    history.take(card("b", 1))  # from 30 s on
    watched.now += 15
    history.take(card("a", ended_at=watched.now))
    watched.now += 15
    step, points = history.points(BEGIN, 100)
    assert step == 60
    (point,) = points[:1]
    assert point.at == BEGIN
    assert point.gpus_used == pytest.approx((0 * 15 + 2 * 15 + 3 * 15 + 1 * 15) / 60)
    assert point.utilisation == pytest.approx(point.gpus_used / 4)
    assert point.waiting == pytest.approx(15 / 60)
    assert point.most_waiting == 1
    assert point.running == pytest.approx((1 * 15 + 2 * 15 + 1 * 15) / 60)
    assert point.decisions_per_hour == pytest.approx(3 * 60)


def test_a_cluster_without_gpus_has_no_share(watched: Watched) -> None:
    watched.gpus = 0
    watched.now += 60
    assert watched.history.points(BEGIN, 10)[1][0].utilisation is None


def test_a_restart_keeps_the_history_and_leaves_its_own_time_out(watched: Watched) -> None:
    watched.history.fill([card("a", 4)])
    watched.now += 120
    watched.history.close()
    watched.store.flush()
    watched.now += 180  # no controller
    again = watched.opened()
    again.fill([card("a", 4), card("b")])
    watched.now += 60
    points = again.points(BEGIN, 100)[1]
    assert [point.at - BEGIN for point in points] == [0, 60, 300]
    assert [point.gpus_used for point in points] == [4, 4, 4]
    assert [point.waiting for point in points] == [0, 0, 1]


def test_a_broken_row_costs_only_its_own_intervals(watched: Watched) -> None:
    watched.now += 2 * 3600
    watched.history.close()
    watched.store.flush()
    key = f"history:60:{int(BEGIN // 3600)}"
    watched.store.write_now(upsert(meta, {"key": key, "value": "{"}))
    points = watched.opened().points(BEGIN, 1000)[1]
    assert [point.at - BEGIN for point in points] == [3600 + 60 * n for n in range(60)]


def test_long_histories_have_longer_intervals_and_a_bounded_size(watched: Watched) -> None:
    history = watched.history
    history.fill([card("a", 1)])
    for _ in range(130):
        watched.now += DAY
        history.flush()
    watched.store.flush()
    assert history.points(watched.now - 3600, 1000)[0] == 60
    assert history.points(watched.now - 7 * DAY, 1000)[0] == 900
    step, points = history.points(BEGIN, 5000)
    assert step == 7200
    assert len(points) <= 1200
    assert points[0].at >= watched.now - 100 * DAY - 7200
    assert points[5].gpus_used == 1.0
    rows = watched.store.rows(sa.select(meta.c.key).where(meta.c.key.startswith("history:")))
    assert len(rows) <= sum(-(-each.kept // each.in_row) + 1 for each in RESOLUTIONS)
    step, few = history.points(BEGIN, 7)
    assert len(few) <= 7
    assert step % 7200 == 0


def test_the_service_counts_and_every_user_sees_it(tmp_path: Path) -> None:
    with inside(tmp_path) as served:
        job = served.submit().json()["id"]
        served.submit()
        ann = served.add_user("ann")
        shown = served.http.get("/api/history", headers=ann).json()
        assert shown["step_seconds"] == 180
        assert shown["points"][-1]["gpus"] == 1
        assert served.http.get("/api/history?points=1").status_code == 422
        served.http.post(f"/api/jobs/{job}/cancel")
        served.service.history.flush()
        waited = served.http.get("/api/history").json()["points"]
        assert max(point["most_waiting"] for point in waited) >= 1
