"""Jobs in order, arrays and sweeps, through the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ones.control.arrays import tasks_of
from ones.errors import UserError
from tests.control.inside import Inside, inside
from tests.processes import wait_for


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("arrays"), slots=4, max_unfinished_jobs=8) as found:
        yield found


@pytest.fixture(autouse=True)
def _empty(service: Inside) -> Iterator[None]:
    yield
    for job in service.http.get("/api/jobs").json():
        service.http.post(f"/api/jobs/{job['id']}/cancel")


def card(service: Inside, job: str) -> Any:  # noqa: ANN401
    return service.http.get(f"/api/jobs/{job}").json()


def wait_state(service: Inside, job: str, state: str) -> None:
    wait_for(lambda: card(service, job)["state"] == state, f"{job} is not {state}")


def test_a_job_starts_after_another(service: Inside) -> None:
    first = service.submit(name="first").json()["id"]
    second = service.submit(after=[first], name="second").json()["id"]
    third = service.submit(after=[f"{first}:any"], name="third").json()["id"]
    found = card(service, second)
    assert (found["state"], found["after"]) == ("blocked", [first])
    assert found["note"] == f"Waiting for the end of {first}."
    service.http.post(f"/api/jobs/{first}/cancel")
    wait_state(service, second, "cancelled")
    why = f"It can never start, because {first} has ended: cancelled (--after {first})"
    assert card(service, second)["message"] == why
    wait_state(service, third, "running")


@pytest.mark.parametrize(
    ("after", "status", "words"),
    [
        ("nothing-9", 404, "unknown job 'nothing-9'"),
        ("first:later", 422, "after: 'first:later': 'later' is neither ok nor any"),
    ],
)
def test_a_job_cannot_wait_for_nonsense(
    service: Inside, after: str, status: int, words: str
) -> None:
    refused = service.submit(after=[after])
    assert (refused.status_code, words in refused.json()["error"]) == (status, True), refused.text


def test_an_array_runs_some_tasks_at_a_time(service: Inside) -> None:
    made = service.submit(name="many", array="0-4%2", command=["sleep", "10{index}"]).json()
    array, tasks = made["id"], made["tasks"]
    assert tasks == [f"{array}_{i}" for i in range(5)]
    for task in tasks[:2]:
        wait_state(service, task, "running")
    third = card(service, tasks[2])
    assert (third["state"], third["array"]) == ("blocked", array)
    assert third["note"] == f"Waiting: at most 2 tasks of array {array} may run at a time."
    assert third["env"]["ONES_ARRAY_INDEX"] == "2"
    assert third["command"] == ["sleep", "102"]
    after = service.submit(after=[array], name="after").json()["id"]
    assert card(service, after)["after"] == tasks
    service.http.post(f"/api/jobs/{tasks[0]}/cancel")
    wait_state(service, tasks[2], "running")
    assert card(service, tasks[3])["state"] == "blocked"
    listed = service.http.get("/api/jobs", params={"array": array}).json()
    assert [job["id"] for job in listed] == tasks[:0:-1]


def test_a_sweep_has_a_task_for_each_combination(service: Inside) -> None:
    sweep = {"lr": ["0.1", "0.01"], "seed": ["1", "2"]}
    made = service.submit(sweep=sweep, array="%1", tags=["x"], command=["echo", "{lr}"]).json()
    commands = [card(service, task)["command"] for task in made["tasks"]]
    assert commands[1:3] == [["echo", "0.1", "--seed=2"], ["echo", "0.01", "--seed=1"]]
    assert card(service, made["tasks"][3])["tags"] == ["x", "lr=0.01", "seed=2"]


def test_an_array_counts_with_all_its_tasks(service: Inside) -> None:
    refused = service.submit(array="0-8")
    assert refused.status_code == 429
    assert "8 unfinished jobs; the limit is max_unfinished_jobs = 8" in refused.json()["error"]
    assert service.http.get("/api/jobs").json() == []


@pytest.mark.parametrize(
    ("array", "sweep", "words"),
    [
        ("a", {}, "is not a list of indexes"),
        ("0-3%0", {}, "'0' is not a number of tasks"),
        ("3-1", {}, "'3-1' has no index"),
        ("0-20000", {}, "20001 tasks are more than 10000"),
        ("0-1", {"lr": ["1"]}, "array: not together with sweep"),
        (None, {"lr": []}, "a parameter has no value"),
        (None, {str(i): ["1"] * 50 for i in range(4)}, "6250000 tasks are more than"),
    ],
)
def test_an_array_that_makes_no_sense_is_refused(
    array: str | None, sweep: dict[str, list[str]], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        tasks_of(array, sweep)
