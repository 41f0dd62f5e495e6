"""Jobs that are changed after their submission, through the HTTP interface and the commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.control.inside import Inside, inside
from tests.processes import wait_for


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("changes"), slots=2) as found:
        yield found


@pytest.fixture(autouse=True)
def _empty(service: Inside) -> Iterator[None]:
    yield
    for job in service.http.get("/api/jobs").json():
        service.http.post(f"/api/jobs/{job['id']}/cancel")


def submit(service: Inside, headers: dict[str, str] | None = None, **more: Any) -> str:
    answer = service.submit(headers, **more)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def card(service: Inside, job: str) -> Any:  # noqa: ANN401
    return service.http.get(f"/api/jobs/{job}").json()


def story(service: Inside, job: str) -> list[str]:
    return [line["text"] for line in service.http.get(f"/api/jobs/{job}/story").json()]


def post(service: Inside, job: str, what: str, **more: Any) -> Any:  # noqa: ANN401
    return service.http.post(f"/api/jobs/{job}/{what}", **more)


def test_a_waiting_job_is_changed_and_its_history_says_by_whom(service: Inside) -> None:
    ann = service.add_user("ann")
    hog = submit(service, gpus=2)
    job = submit(service, ann, gpus=None, min_gpus=1)
    change = {
        "priority": 5,
        "min_gpus": 2,
        "max_gpus": 2,
        "max_run_seconds": 60,
        "tags": ["a", "b"],
    }
    assert service.http.patch(f"/api/jobs/{job}", json=change, headers=ann).status_code == 200
    found = card(service, job)
    assert {name: found[name] for name in change} == {**change, "priority": 5.0}
    told = "Changed by ann: priority 5, at least 2 GPUs, at most 2 GPUs, run time 60 s, tags a b."
    assert told in story(service, job)
    rows = [
        (row["who"], row["subject"]) for row in service.audit() if row["action"] == "job changed"
    ]
    assert ("ann", job) in rows
    more = {"max_gpus": 0, "max_run_seconds": 0, "tags": []}
    service.http.patch(f"/api/jobs/{job}", json=more, headers=ann)
    found = card(service, job)
    assert (found["max_gpus"], found["max_run_seconds"], found["tags"]) == (None, None, [])
    assert service.http.patch(f"/api/jobs/{hog}", json=change, headers=ann).status_code == 404


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "nothing to change"),
        ({"min_gpus": 3}, "min_gpus 3 is more than the cluster has, 2"),
        ({"min_gpus": 2, "max_gpus": 1}, "max_gpus 1 is less than min_gpus 2"),
        ({"min_gpus": 0}, "min_gpus"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(
    service: Inside, change: dict[str, Any], words: str
) -> None:
    submit(service, gpus=2)
    job = submit(service, gpus=None)
    answer = service.http.patch(f"/api/jobs/{job}", json=change)
    assert (answer.status_code, words in answer.json()["error"]) == (422, True), answer.text


def test_a_held_job_waits_until_it_is_released(service: Inside) -> None:
    hog = submit(service, gpus=2)
    job = submit(service)
    assert post(service, job, "hold").json() == {"id": job, "state": "held"}
    found = card(service, job)
    admin = found["held_by"]
    assert found["note"] == f"On hold, by {admin}. It can start again after: ones release {job}"
    post(service, hog, "cancel")
    wait_for(lambda: card(service, hog)["gpus"] == 0, "the other job keeps its GPUs")
    assert card(service, job)["state"] == "held"
    post(service, job, "release")
    wait_for(lambda: card(service, job)["gpus"] == 1, "the released job does not start")
    assert f"Put on hold by {admin}." in story(service, job)
    assert f"Released by {admin}." in story(service, job)
    refused = post(service, job, "hold")
    assert refused.status_code == 422
    assert "it runs with a fixed size, so a hold would lose its work" in refused.json()["error"]


def test_a_user_cannot_release_what_an_admin_holds(service: Inside) -> None:
    bob = service.add_user("bob")
    submit(service, gpus=2)
    job = submit(service, bob)
    post(service, job, "hold")
    refused = post(service, job, "release", headers=bob)
    assert (refused.status_code, "ask an admin" in refused.json()["error"]) == (403, True)
    post(service, job, "release")
    post(service, job, "hold", headers=bob)
    assert post(service, job, "release", headers=bob).json()["state"] == "waiting"


def test_a_job_runs_again_as_it_was_submitted_and_changed(service: Inside) -> None:
    first = submit(service, command=["sleep", "0"], name="again", gpus=None, tags=["x"])
    service.http.patch(f"/api/jobs/{first}", json={"priority": 2})
    wait_for(lambda: card(service, first)["ended_at"] is not None, "it does not end")
    late = service.http.patch(f"/api/jobs/{first}", json={"priority": 2})
    assert late.status_code == 422
    assert f"again: ones rerun {first}" in late.json()["error"]
    assert post(service, first, "hold").status_code == 422
    refused = post(service, first, "rerun")
    assert refused.status_code == 422
    assert "its environment was removed when it ended" in refused.json()["error"]
    again = service.http.post(f"/api/jobs/{first}/rerun", json={"env": {"PATH": "/bin", "X": "1"}})
    second = again.json()["id"]
    assert card(service, second)["env"] == {"PATH": "/bin", "X": "1"}
    dog = service.add_user("dog", role="admin")
    other = service.http.post(
        f"/api/jobs/{first}/rerun", json={"env": {"SECRET": "of dog"}}, headers=dog
    )
    assert other.status_code == 422
    old, new = card(service, first), card(service, second)
    for name in ("command", "cwd", "tags", "owner", "kind", "priority", "name"):
        assert old[name] == new[name], name
    assert second != first
    assert post(service, "no-such-job", "rerun").status_code == 404


def test_jobs_are_listed_by_owner_tag_and_name(service: Inside) -> None:
    cat = service.add_user("cat")
    mine = submit(service, name="bert-a", tags=["nlp"])
    theirs = submit(service, cat, name="bert-b")

    def listed(headers: dict[str, str] | None = None, **query: str) -> list[str]:
        found = service.http.get("/api/jobs", params=query, headers=headers).json()
        return [job["id"] for job in found]

    assert listed(name="bert-*") == [theirs, mine]
    assert listed(owner="cat") == [theirs]
    assert listed(tag="nlp") == [mine]
    assert listed(cat, owner="cat", name="bert-b") == [theirs]
    assert listed(cat, owner="someone") == []
