"""GPU hours by user, tag and day; budgets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from ones.control.live.jobs import NOW
from ones.control.readmodels.job_cards import JobCard, WorkerCard
from ones.control.store import Store
from ones.control.usage import Usage
from ones.core.events import FairShareSet
from tests.control.inside import Inside, inside
from tests.processes import wait_for

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC).timestamp()
HOUR, DAY = 3600.0, 86_400.0
CARD = JobCard(
    id="a-1", name="a", owner="ann", state="running", elastic=True, kind="a", command=("a",),
    tags=("nlp", "big"), priority=0.0, min_gpus=1, max_gpus=None, workers=(), batch=None,
    dataset_size=None, eta=None, eta_low=None, eta_high=None, note="", message="",
    submitted_at=NOON, started_at=NOON, ended_at=None, booked_at=NOON,
)  # fmt: skip
TWO = (WorkerCard(gpu="n/0", batch=1), WorkerCard(gpu="n/1", batch=1))


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    yield store
    store.close()


def hours(usage: Usage, live: list[JobCard], **more: str) -> dict[tuple[str, str], float]:
    rows = usage.rows(live, since=0.0, until=NOON + 40 * DAY, **more)
    return {(row.day, row.tag): round(row.gpu_hours, 6) for row in rows}


def test_gpu_time_is_counted_by_day_and_tag(store: Store) -> None:
    clock = Clock()
    usage = Usage(store, clock)
    usage.take(replace(CARD, workers=TWO))
    # 2 GPUs from noon to noon of the next day
    later = replace(CARD, workers=TWO, gpu_seconds=2 * DAY, booked_at=NOON + DAY)
    clock.now = NOON + DAY + HOUR
    usage.take(later)
    day, following = "2026-03-31", "2026-04-01"
    expected = {(day, tag): 24.0 for tag in ("", "nlp", "big")}
    assert hours(usage, []) == {**expected, **{(following, t): 24.0 for t in ("", "nlp", "big")}}
    assert hours(usage, [later])[following, ""] == 26.0, "the time since the last card"
    assert hours(usage, [], user="bob") == {}
    assert usage.used_this_month("ann", [later]) == pytest.approx(26.0)


def test_a_restart_counts_nothing_twice_and_misses_nothing(store: Store) -> None:
    clock = Clock()
    first = Usage(store, clock)
    first.take(replace(CARD, workers=TWO, gpu_seconds=HOUR, booked_at=NOON + HOUR / 2))
    first.flush()
    store.flush()
    second = Usage(store, clock)
    # it went on, and ended before it was counted again
    over = replace(CARD, gpu_seconds=3 * HOUR, booked_at=NOON + 2 * HOUR, ended_at=NOON + 2 * HOUR)
    other = replace(over, id="old-1", gpu_seconds=50 * HOUR)  # counted long ago
    second.fill([over, other])
    assert hours(second, [])["2026-03-31", ""] == 3.0
    second.flush()
    store.flush()
    assert hours(Usage(store, clock), []) == hours(second, [])


def test_jobs_of_an_earlier_version_are_counted_from_their_cards(store: Store) -> None:
    usage = Usage(store, Clock())
    usage.fill([replace(CARD, gpu_seconds=HOUR, booked_at=NOON + HOUR, ended_at=NOON + HOUR)])
    assert hours(usage, [])["2026-03-31", "nlp"] == 1.0


def test_fair_share_begins_with_the_use_of_earlier_days(store: Store) -> None:
    usage = Usage(store, Clock())
    usage.take(replace(CARD, workers=TWO, started_at=NOON - DAY, booked_at=NOON - DAY))
    over = replace(CARD, gpu_seconds=2 * DAY, booked_at=NOON, ended_at=NOON)
    usage.take(over)
    half_each = 24 * HOUR  # of the day before, a day ago at noon; and of this day
    assert usage.decayed([], DAY) == {"ann": pytest.approx(1.5 * half_each)}
    assert usage.decayed([], 0.0) == {}


@pytest.fixture
def fair(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path, slots=1, fair_share_half_life_hours=24.0) as found:
        yield found


def test_a_heavy_user_sees_why_jobs_of_another_user_go_first(fair: Inside) -> None:
    ann, bob = fair.add_user("ann"), fair.add_user("bob")
    fair.service.engine.tell(FairShareSet(NOW, DAY, {"ann": 120 * HOUR}))
    first = fair.submit(bob).json()["id"]
    wait_for(lambda: fair.http.get(f"/api/jobs/{first}").json()["state"] == "running")
    late, soon = fair.submit(ann).json()["id"], fair.submit(bob).json()["id"]
    job = fair.http.get(f"/api/jobs/{late}").json()
    assert job["penalty"] > 0.75
    assert job["note"].startswith("Waiting")
    assert "Past use of ann's jobs counts as 120 GPU hours, " in job["note"]
    assert "x an equal share: users with less go first." in job["note"]
    assert "Past use" not in fair.http.get(f"/api/jobs/{soon}").json()["note"]
    assert "Position 2 of 2" in job["note"]
    shares = fair.http.get("/api/shares").json()
    assert shares["half_life_hours"] == 24.0
    (of_ann,) = fair.http.get("/api/shares", headers=ann).json()["users"]
    assert of_ann["user"] == "ann"
    assert of_ann["gpu_hours"] == pytest.approx(120, rel=1e-3)
    assert of_ann["ratio"] == pytest.approx(of_ann["gpu_hours"] / of_ann["share_gpu_hours"])
    page = fair.http.get("/usage", headers=bob).text
    assert "Fair share" in page
    assert ">ann</th>" not in page
    assert ">ann</th>" in fair.http.get("/usage").text
    fair.http.post(f"/api/jobs/{first}/cancel").raise_for_status()
    wait_for(lambda: fair.http.get(f"/api/jobs/{soon}").json()["state"] == "running")
    assert fair.http.get(f"/api/jobs/{late}").json()["state"] == "waiting"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("usage"), slots=2) as found:
        yield found


def test_users_see_their_own_usage_and_a_budget_refuses(service: Inside) -> None:
    ann, bob = service.add_user("ann"), service.add_user("bob")
    job = service.submit(ann, command=["sleep", "0.2"], tags=["t"]).json()["id"]
    wait_for(lambda: service.http.get(f"/api/jobs/{job}").json()["ended_at"] is not None)
    (mine,) = service.http.get("/api/usage", headers=ann).json()
    assert (mine["user"], mine["tag"], mine["day"], mine["gpu_hours"] > 0) == (
        "ann",
        None,
        None,
        True,
    )
    query = {"by": ["tag", "day"], "owner": "ann"}
    (row,) = service.http.get("/api/usage", params=query).json()
    assert (row["tag"], len(row["day"]), row["user"]) == ("t", 10, None)
    assert service.http.get("/api/usage", headers=bob).json() == []
    page = service.http.get("/usage", headers=ann).text
    assert ">ann</th>" in page
    assert ">ann</th>" not in service.http.get("/usage", headers=bob).text
    assert service.bare.get("/usage").status_code == 401
    assert service.http.get("/api/usage", params={"owner": "ann"}, headers=bob).json() == []

    path = "/api/users/ann/budget"
    assert service.http.put(path, json={"gpu_hours": 1}, headers=ann).status_code == 403
    assert service.http.put("/api/users/eve/budget", json={"gpu_hours": 1}).status_code == 404
    assert service.http.put(path, json={"gpu_hours": 1}).json()["gpu_hours"] == 1.0
    assert service.submit(ann, command=["true"]).status_code == 201
    service.http.put(path, json={"gpu_hours": 0})
    refused = service.submit(ann)
    assert refused.status_code == 422
    assert "of 0 GPU hours of this month; jobs can be" in refused.json()["error"]
    assert service.http.post(f"/api/jobs/{job}/rerun", headers=ann).status_code == 422
    assert service.submit(bob, command=["true"]).status_code == 201
    assert {b["user"]: b["gpu_hours"] for b in service.http.get("/api/budgets").json()}["ann"] == 0
    assert [b["user"] for b in service.http.get("/api/budgets", headers=bob).json()] == ["bob"]
    service.http.put(path, json={"gpu_hours": None})
    assert service.submit(ann, command=["true"]).status_code == 201
