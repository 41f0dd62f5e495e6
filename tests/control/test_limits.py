"""Limits: each refuses in one line that names its setting and value, and lets the rest through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ones.config import ServiceSettings
from ones.control.api import Gate
from ones.control.limits import LimitError, Limits, ReportRates
from ones.errors import InvalidSettingError
from tests.asynchronous import run_apart
from tests.control.inside import URL, Inside, bearer, inside
from tests.processes import wait_for

KIB = 1024


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    root = tmp_path_factory.mktemp("limits")
    with inside(root, max_command_kb=2, max_environment_kb=3, max_unfinished_jobs=4) as found:
        yield found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"command": ["x" * KIB, "y" * KIB]},
            "command: 2050 bytes is too long; the limit is max_command_kb = 2",
        ),
        (
            {"env": {f"N{i}": "v" * 1000 for i in range(4)}},
            "env: 4016 bytes is too large; the limit is max_environment_kb = 3",
        ),
    ],
)
def test_a_job_that_is_too_large_is_refused(
    service: Inside, change: dict[str, Any], words: str
) -> None:
    answer = service.submit(**change)
    assert (answer.status_code, answer.json()) == (422, {"error": words})
    assert service.http.get("/api/jobs?all=true").json() == []


def test_a_user_has_a_limit_of_unfinished_jobs(service: Inside) -> None:
    ann = service.add_user("ann")
    jobs = [service.submit(ann).json()["id"] for _ in range(4)]
    refused = service.submit(ann)
    assert refused.status_code == 429
    told = "ann has 4 unfinished jobs; the limit is max_unfinished_jobs = 4"
    assert refused.json() == {"error": told}
    mine = service.submit()
    assert mine.status_code == 201, "another user's jobs do not count"
    service.http.post(f"/api/jobs/{jobs[3]}/cancel")
    again = service.submit(ann)
    assert again.status_code == 201, "nor do jobs that have ended"
    for job in [*jobs, mine.json()["id"], again.json()["id"]]:
        service.http.post(f"/api/jobs/{job}/cancel")
    wait_for(lambda: not +service.service.board.unfinished)


def test_users_have_a_small_range_of_priorities_and_admins_a_large_one(service: Inside) -> None:
    bob = service.add_user("bob")
    refused = service.submit(bob, priority=101)
    assert refused.status_code == 422
    told = "priority: 101 is for admins only; the limit is max_priority = 100"
    assert refused.json() == {"error": told}
    job = service.submit(bob, priority=-100).json()["id"]
    path = f"/api/jobs/{job}"
    assert service.http.patch(path, json={"priority": -101}, headers=bob).status_code == 422
    assert service.http.patch(path, json={"priority": 100}, headers=bob).status_code == 200
    assert service.http.patch(path, json={"priority": 1e6}).status_code == 200
    service.http.post(f"{path}/cancel")
    assert service.submit(retries=101).status_code == 422


def test_a_user_has_a_limit_of_concurrent_requests(service: Inside) -> None:
    cat, admin = service.add_user("cat"), dict(service.http.headers)
    most = service.service.limits.max_requests_per_user

    async def ask() -> list[httpx.Response]:
        running, release = 0, asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal running
            running += 1
            await release.wait()
            await Response("done")(scope, receive, send)

        gate = Gate(slow, service.service, ["127.0.0.1"])
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            waiting = [
                asyncio.create_task(client.get("/api/jobs", headers=cat)) for _ in range(most)
            ]
            while running < most:
                await asyncio.sleep(0.001)
            refused = await client.get("/api/jobs", headers=cat)
            waiting.append(asyncio.create_task(client.get("/api/jobs", headers=admin)))
            while running < most + 1:
                await asyncio.sleep(0.001)
            release.set()
            others = [await task for task in waiting]
            return [refused, *others, await client.get("/api/jobs", headers=cat)]

    refused, *others = run_apart(ask())
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    told = f"cat already has {most} requests in progress"
    assert refused.json() == {"error": f"{told}; the limit is max_requests_per_user = {most}"}
    assert [answer.status_code for answer in others] == [200] * (most + 2)


def test_reports_have_a_rate_for_each_worker_and_a_burst() -> None:
    now = 0.0
    limits = Limits.of(ServiceSettings())
    rates = ReportRates(limits, lambda: now)
    for _ in range(2):
        rates.take("a-1", 500, workers=2)
    with pytest.raises(LimitError) as refused:
        rates.take("a-1", 500, workers=2)
    assert str(refused.value) == (
        "job a-1: more than 200 reports per second; the limit is max_reports_per_second = 100"
    )
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "3"})
    rates.take("b-2", 500, workers=1)  # another job is not concerned
    now = 2.5
    rates.take("a-1", 500, workers=2)
    with pytest.raises(LimitError):
        rates.take("a-1", 1, workers=2)
    now = 1e6
    for _ in range(2):
        rates.take("a-1", 500, workers=2)
    with pytest.raises(LimitError):
        rates.take("a-1", 1, workers=2)
    rates.forget_others({"b-2"})
    assert len(rates) == 1


def test_an_honest_request_of_the_training_library_is_never_too_large() -> None:
    from ones.train import controller_client

    assert ServiceSettings().max_reports_per_request >= controller_client._MAX_BATCH


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"max_command_kb": 0}, "max_command_kb: 0 is not above 0"),
        ({"max_body_seconds": -1.0}, "max_body_seconds: -1.0 is not above 0"),
        ({"max_report_burst": 10}, "max_report_burst: 10 is below max_reports_per_request 500"),
    ],
)
def test_a_limit_that_nothing_could_pass_is_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        Limits.of(ServiceSettings(**setting))


def test_bodies_of_strangers_are_not_read(service: Inside) -> None:
    """Neither of users nor of workers: the answer comes before the body is even sent."""
    read = 0

    def body() -> Iterator[bytes]:
        nonlocal read
        read += 1
        yield b"x" * 1000

    for path, told in (
        ("/api/jobs", "missing or invalid token"),
        ("/worker/reports", "missing or invalid token of a job"),
    ):
        for token in ("wrong", "w\xf6rong"):
            header = {"Authorization": f"Bearer {token}".encode("latin-1")}
            answer = service.bare.post(path, content=body(), headers=header)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()) == (401, {"error": told})
    assert read == 0


def test_reports_beyond_the_limits_are_refused(service: Inside) -> None:
    """With a real job; its worker is a process that sleeps."""
    job = service.submit(gpus=None, elastic=None).json()["id"]
    wait_for(lambda: service.service.engine.live.jobs[job].workers, "it does not start")
    token = bearer(service.service.tokens.of(job))
    report = {"type": "Steps", "epoch": 0, "steps": 1, "samples": 1}

    def send(reports: int) -> Any:  # noqa: ANN401
        body = {
            "type": "Reports", "job": job, "worker": "local/0", "plan": 10**6, "first": 1,
            "reports": [report] * reports,
        }  # fmt: skip
        return service.bare.post("/worker/reports", json=body, headers=token)

    refused = send(501)
    assert refused.status_code == 422, refused.text
    told = f"job {job}: 501 reports in one request"
    assert refused.json() == {"error": f"{told}; the limit is max_reports_per_request = 500"}
    answers = [send(500) for _ in range(5)]
    late = [answer for answer in answers if answer.status_code == 429]
    assert [answer.status_code for answer in answers[:2]] == [200, 200], answers[0].text
    assert late, [answer.status_code for answer in answers]
    assert "the limit is max_reports_per_second = 100" in late[0].json()["error"]
    assert 1 <= int(late[0].headers["retry-after"]) <= 5
    other = service.bare.post(
        "/worker/reports", content=json.dumps({"type": "Reports", "job": "x", "worker": "local/0",
        "plan": 1, "first": 0}), headers=token,
    )  # fmt: skip
    assert other.status_code == 401, "its token is for its own reports only"
    service.http.post(f"/api/jobs/{job}/cancel")
    wait_for(lambda: job not in service.service.engine.live.jobs, "it does not end")
    assert send(1).status_code == 409, "a worker of a job that has ended shall go"
