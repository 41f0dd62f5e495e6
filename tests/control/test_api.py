"""The HTTP interface: permissions, refusals and answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ones.control.api.response_models import JobShown, WorkerShown
from ones.control.readmodels.job_cards import JobCard, WorkerCard
from tests.control.world import ENV, World, anyone
from tests.processes import PATIENCE, wait_for


@pytest.fixture(scope="module")
def ann(world: World) -> Iterator[httpx.Client]:
    """A user that is not an admin."""
    token = world.post("/api/users", {"name": "ann"}, 201)["token"]
    with httpx.Client(
        base_url=world.http.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE
    ) as client:
        yield client


def new_job(**more: Any) -> dict[str, Any]:
    return {"command": ["true"], "cwd": "/", "env": ENV, "gpus": 1, **more}


def test_every_field_of_a_job_card_is_shown() -> None:
    """A new field of a card that is missing in the response model would be dropped silently."""
    fields = set(JobCard.__struct_fields__) - {"booked_at"} | {"gpus"}
    fields |= {"utilisation", "memory_mb", "power_watts", "idle_gpus", "slow_gpus"}
    assert set(JobShown.model_fields) == fields
    assert set(WorkerShown.model_fields) == set(WorkerCard.__dataclass_fields__)


def test_without_a_token_or_with_a_wrong_one_there_is_nothing(world: World) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
        for method, path in (
            ("GET", "/api/jobs"),
            ("POST", "/api/jobs"),
            ("GET", "/api/cluster"),
            ("GET", "/api/events"),
            ("GET", "/api/users"),
            ("GET", "/api/decisions"),
        ):
            answer = anyone(method, f"{world.http.base_url}{path}", headers=headers, json=new_job())
            assert answer.status_code == 401, path
            assert answer.json() == {"error": "missing or invalid token"}
    assert anyone("GET", f"{world.http.base_url}/health").json()["ok"]


def test_a_user_sees_and_cancels_only_their_own(world: World, ann: httpx.Client) -> None:
    secret = new_job(env={**ENV, "PASSWORD": "hidden"}, command=["sleep", "100"])
    theirs = world.post("/api/jobs", secret, 201)["id"]
    mine = ann.post("/api/jobs", json=new_job(command=["sleep", "100"])).json()["id"]
    for path in ("", "/story", "/curves", "/launches"):
        answer = ann.get(f"/api/jobs/{theirs}{path}")
        assert answer.status_code == 404
        assert "hidden" not in answer.text
    assert ann.post(f"/api/jobs/{theirs}/cancel").status_code == 404
    assert ann.patch(f"/api/jobs/{theirs}", json={"priority": 9}).status_code == 404
    assert [job["id"] for job in ann.get("/api/jobs").json()] == [mine]
    wait_for(lambda: any(s["owner"] == "ann" for s in world.get("/api/cluster")["slots"]))
    seen = {slot["job"] for slot in ann.get("/api/cluster").json()["slots"]}
    assert theirs not in seen
    shown = json.dumps(ann.get("/api/decisions").json())
    assert mine in shown
    assert theirs not in shown
    assert world.job(mine)["owner"] == "ann", "an admin sees all"
    assert world.job(theirs)["env"]["PASSWORD"] == "hidden"
    for job in (theirs, mine):
        world.post(f"/api/jobs/{job}/cancel")
        world.wait_end(job)
    assert "Cancelled by" in ann.get(f"/api/jobs/{mine}").json()["message"]


def test_only_admins_manage_users(world: World, ann: httpx.Client) -> None:
    assert ann.get("/api/users").status_code == 403
    assert ann.post("/api/users", json={"name": "eve"}).status_code == 403
    assert ann.put("/api/users/ann/limit", json={"max_gpus": 100}).status_code == 403
    shown = {"name": "ann", "role": "user", "max_gpus": None, "unix": None}
    assert ann.get("/api/me").json() == shown
    assert world.http.post("/api/users", json={"name": "ann"}).status_code == 422
    wrong = world.http.post("/api/users", json={"name": "Ann B"})
    assert wrong.status_code == 422
    assert "'Ann B' is not a name (a-z, 0-9, _, -, .)" in wrong.text
    wrong = world.http.post("/api/users", json={"name": "eve", "role": "boss"})
    assert wrong.status_code == 422
    assert "'boss' is not one of admin, user" in wrong.text
    assert world.http.post("/api/users/nobody/token").status_code == 404


def test_a_renewed_token_voids_the_old_one(world: World) -> None:
    old = world.post("/api/users", {"name": "bob"}, 201)["token"]
    new = world.post("/api/users/bob/token")["token"]
    url = f"{world.http.base_url}/api/me"
    assert anyone("GET", url, headers={"Authorization": f"Bearer {old}"}).status_code == 401
    assert anyone("GET", url, headers={"Authorization": f"Bearer {new}"}).json()["name"] == "bob"
    database = (world.dir.path / "ones.db").read_bytes()
    database += (world.dir.path / "ones.db-wal").read_bytes()
    assert new.encode() not in database, "only a hash is kept"


def test_limits_are_kept_and_visible(world: World, ann: httpx.Client) -> None:
    answer = world.http.put("/api/users/ann/limit", json={"max_gpus": 1})
    assert answer.json()["max_gpus"] == 1
    jobs = [
        ann.post("/api/jobs", json=new_job(command=["sleep", "100"])).json()["id"] for _ in range(2)
    ]
    wait_for(lambda: world.job(jobs[0])["state"] == "running")
    held_back = world.job(jobs[1])
    assert held_back["state"] == "waiting"
    assert held_back["note"] == (
        "Waiting: ann may use 1 GPU and uses 1. It starts when another job of ann ends."
    )
    wide = ann.post("/api/jobs", json=new_job(command=["sleep", "1"], gpus=2))
    assert wide.status_code == 422
    assert "gpus 2 is more than the limit of user ann, 1 GPU" in wide.json()["error"]
    world.http.put("/api/users/ann/limit", json={"max_gpus": None})
    wait_for(lambda: world.job(jobs[1])["state"] == "running")
    for job in jobs:
        world.post(f"/api/jobs/{job}/cancel")
        world.wait_end(job)


def test_a_reason_names_only_jobs_that_the_reader_may_see(world: World, ann: httpx.Client) -> None:
    wait_for(lambda: not world.get("/api/cluster")["running"])
    hog = world.post("/api/jobs", new_job(command=["sleep", "100"], gpus=4), 201)["id"]
    wait_for(lambda: world.job(hog)["state"] == "running")
    job = ann.post("/api/jobs", json=new_job(command=["sleep", "0.1"], gpus=2)).json()["id"]
    needs = "Waiting: needs 2 GPUs at the same time. GPUs are used by"
    wait_for(lambda: world.job(job)["note"] == f"{needs} {hog}. Position 1 of 1.")
    shown = f"{needs} a job of another user. Position 1 of 1."
    assert ann.get(f"/api/jobs/{job}").json()["note"] == shown
    assert [card["note"] for card in ann.get("/api/jobs").json()] == [shown]
    for path in (f"/api/jobs/{job}/story", "/api/decisions"):
        assert hog not in ann.get(path).text
    for each in (hog, job):
        world.post(f"/api/jobs/{each}/cancel")
        world.wait_end(each)


def test_priority_decides_the_next_job_and_can_be_changed(world: World) -> None:
    wait_for(lambda: not world.get("/api/cluster")["running"])
    hog = world.post("/api/jobs", new_job(command=["sleep", "100"], gpus=4), 201)["id"]
    wait_for(lambda: world.job(hog)["state"] == "running")
    low, high = (
        world.post("/api/jobs", new_job(command=["sleep", "0.1"], gpus=4, priority=p), 201)["id"]
        for p in (0, 5)
    )
    assert world.http.patch(f"/api/jobs/{low}", json={"priority": 9}).status_code == 200
    assert world.job(low)["priority"] == 9
    world.post(f"/api/jobs/{hog}/cancel")
    ends = [world.wait_end(job)["started_at"] for job in (low, high)]
    assert ends[0] < ends[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 5}, "gpus 5 is more than the cluster has, 4"),
        ({"gpus": 0}, "gpus: Input should be greater than or equal to 1 (got 0)"),
        ({"gpus": None, "min_gpus": 9}, "min_gpus 9 is more than the cluster has, 4"),
        ({"gpus": None, "min_gpus": 3, "max_gpus": 2}, "max_gpus: 2 is less than min_gpus 3"),
        ({"command": []}, "command: List should have at least 1 item"),
        ({"cwd": "here"}, "cwd: 'here' is not an absolute path"),
        ({"env": {"A=B": "x"}}, "env: a name is empty or has '='"),
        ({"env": {"A": "x\0y"}}, "env.A: String should match pattern"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted (got 'red')"),
        ({"target_accuracy": 2}, "target_accuracy: Input should be less than or equal to 1"),
        ({"retries": "many"}, "retries: Input should be a valid integer (got 'many')"),
        ({"gpus": 1, "elastic": True}, "gpus: a fixed-size job cannot be elastic"),
    ],
)
def test_an_impossible_job_is_refused_by_field_and_value(
    world: World, change: dict[str, Any], words: str
) -> None:
    before = len(world.get("/api/jobs", all=True))
    answer = world.http.post("/api/jobs", json={**new_job(), **change})
    assert answer.status_code == 422
    assert words in answer.json()["error"]
    assert len(world.get("/api/jobs", all=True)) == before


def test_an_unknown_job_is_404_with_a_hint(world: World) -> None:
    job = world.post("/api/jobs", new_job(name="bert"), 201)["id"]
    answer = world.http.get(f"/api/jobs/{job}0")
    assert answer.status_code == 404
    assert answer.json()["error"] == f"unknown job '{job}0'; did you mean '{job}'?"
    assert world.http.get(f"/api/jobs/{job}/launches/nope/log").status_code == 404
    world.wait_end(job)


def test_a_request_that_is_too_large_is_refused(world: World) -> None:
    answer = world.http.post("/api/jobs", content=b"x" * (5 << 20))
    assert answer.status_code == 413


def test_a_link_logs_one_browser_in_once(world: World) -> None:
    link = world.post("/api/link")["url"]
    with httpx.Client() as browser:
        answer = browser.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert browser.get(f"{world.http.base_url}/api/me").json()["role"] == "admin"
    assert anyone("GET", link).status_code == 401
    assert anyone("GET", f"{world.http.base_url}/login").status_code == 401


def test_news_come_as_they_happen(world: World, ann: httpx.Client) -> None:
    states: list[str] = []
    others: list[str] = []
    ready = threading.Event()

    def listen(client: httpx.Client, into: list[str], seen: threading.Event) -> None:
        with client.stream("GET", "/api/events", timeout=PATIENCE) as stream:
            kind = ""
            for line in stream.iter_lines():
                if line.startswith("event:"):
                    kind = line.removeprefix("event:").strip()
                    if kind == "hello":
                        seen.set()
                elif line.startswith("data:") and kind == "job":
                    card = json.loads(line.removeprefix("data:"))
                    if card["name"] != "followed":  # jobs of earlier tests may still end
                        continue
                    into.append(card["state"])
                    if into[-1] in ("finished", "failed"):
                        return

    both = threading.Event()
    threads = [
        threading.Thread(target=listen, args=(world.http, states, ready), daemon=True),
        threading.Thread(target=listen, args=(ann, others, both), daemon=True),
    ]
    for thread in threads:
        thread.start()
    assert ready.wait(PATIENCE)
    assert both.wait(PATIENCE)
    end = world.gate()
    job = world.post("/api/jobs", new_job(name="followed", command=end.shell()), 201)["id"]
    world.wait_state(job, "running")
    wait_for(lambda: "running" in states)
    end.open()
    threads[0].join(PATIENCE)
    assert states[-1] == "finished"
    assert others == [], "jobs of other users are not shown"
    ann.post("/api/jobs", json=new_job(name="followed"))
    threads[1].join(PATIENCE)
    assert others[-1] == "finished"


def test_metrics_are_for_prometheus(world: World) -> None:
    text = anyone("GET", f"{world.http.base_url}/metrics").text
    assert "# TYPE ones_jobs gauge" in text
    assert "ones_slots 4.0" in text
    assert "ones_plans_total" in text


def test_a_worker_without_the_token_of_its_job_is_refused(world: World) -> None:
    job = world.submit(1000, 1.0)
    wait_for(lambda: world.job(job)["state"] == "running")
    launch = world.launches(job)[0]
    body = {"type": "Reports", "job": job, "worker": launch["slots"][0], "plan": 1, "first": 0}
    url = f"{world.http.base_url}/worker/reports"
    assert anyone("POST", url, json=body).status_code == 401
    assert world.http.post("/worker/reports", json=body).status_code == 401, "nor is a user"
    assert anyone("POST", url, content=b"{").status_code == 401, "before its body is looked at"
    world.post(f"/api/jobs/{job}/cancel")
    world.wait_end(job)
