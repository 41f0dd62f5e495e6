"""`ones.client` against a service in this process."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ones.client import AsyncClient, Client
from ones.client.calls import act, job
from ones.client.connection import Connection, find
from ones.errors import UnknownNameError, UserError, WorldError
from tests.asynchronous import run_apart
from tests.control.inside import URL, Inside, inside
from tests.processes import wait_for


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("client"), slots=2) as found:
        yield found


@pytest.fixture
def client(service: Inside, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with Client(URL, "token") as found:
        monkeypatch.setitem(found.__dict__, "_http", service.http)
        monkeypatch.setattr(found, "close", lambda: None)
        yield found


def test_a_job_is_submitted_changed_and_awaited(client: Client) -> None:
    hog = client.submit(["sleep", "100"], gpus=2)
    made = client.submit(["echo", "hello"], name="greet", gpus=1, cwd="/", tags=["t"])
    assert client.change(made.id, priority=3.0).id == made.id
    assert client.hold(made.id).state == "held"
    assert [each.id for each in client.jobs(state=["held"], tag="t")] == [made.id]
    client.release(made.id)
    assert client.job(made.id).priority == 3.0
    with pytest.raises(WorldError, match=f"not ended in time: {made.id}"):
        client.wait([made.id], timeout=0.0)
    client.cancel(hog.id)
    (done,) = client.wait([made.id])
    assert (done.state, done.name) == ("finished", "greet")
    (launch,) = client.launches(made.id)
    assert client.output(made.id, launch.id) == b"hello\n"
    assert client.story(made.id)[0].text.startswith("Submitted by")
    assert client.curves(made.id).loss == []
    assert client.rerun(made.id).id != made.id


def test_the_cluster_is_shown_and_drained(client: Client) -> None:
    assert client.drain("local", "new fan").nodes[0].reason.endswith(": new fan")
    assert client.undrain("local").nodes[0].state == "up"
    assert client.cluster().policy == "fifo"


def test_the_past_is_shown(client: Client) -> None:
    made = client.submit(["true"], gpus=1)
    client.wait([made.id])
    assert [each.user for each in client.usage(["user", "day"], since=0.0)] == [
        client.job(made.id).owner
    ]
    assert client.history(points=2).step_seconds >= 60
    (shown,) = client.curves_of_jobs([made.id], against="time").jobs
    assert (shown.id, shown.curves.loss) == (made.id, [])
    with pytest.raises(UnknownNameError, match="unknown policy 'best'"):
        client.start_whatif("best")
    with pytest.raises(UserError, match="has not started a replay"):
        client.whatif()
    assert client.start_whatif("srtf", hours=1.0).policy == "srtf"
    assert client.cancel_whatif().state in ("cancelled", "done")


def test_errors_are_exceptions_of_one_line(client: Client, service: Inside) -> None:
    with pytest.raises(UnknownNameError, match="unknown job 'none'"):
        client.job("none")
    with pytest.raises(UserError, match="max_gpus: Input should be a valid integer"):
        client.submit(["x"], max_gpus="many")
    with pytest.raises(UserError, match="wings: Extra inputs are not permitted"):
        client.submit(["x"], wings=2)
    with pytest.raises(UserError, match="nothing to change"):
        client.change("x")
    with pytest.raises(UserError, match="unknown job 'a/b'"):
        client.cancel("a/b")
    with pytest.raises(WorldError, match="unexpected answer: id: Field required"):
        act("x", "cancel").read({"state": "held"})
    refused = pytest.raises(WorldError, match=r"no service answers at http://127\.0\.0\.1:1")
    with Client("http://127.0.0.1:1", "token") as nobody, refused:
        nobody.cluster()


def test_the_asynchronous_client_has_the_same_methods_and_answers(service: Inside) -> None:
    def methods(kind: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(value))
            for name, value in vars(kind).items()
            if inspect.isfunction(value) and not name.startswith("__")
        }

    assert methods(Client) == methods(AsyncClient)
    made = service.submit(command=["true"]).json()["id"]
    wait_for(lambda: service.http.get(f"/api/jobs/{made}").json()["ended_at"] is not None)

    def answer(request: httpx.Request) -> httpx.Response:
        found = service.http.request(request.method, str(request.url), content=request.content)
        return httpx.Response(found.status_code, content=found.content)

    async def use() -> None:
        async with AsyncClient(URL, "token") as client:
            await client._http.aclose()
            client._http = httpx.AsyncClient(base_url=URL, transport=httpx.MockTransport(answer))
            (done,) = await client.wait([made])
            assert done == job(made).read(service.http.get(f"/api/jobs/{made}").json())
            assert (await client.jobs(all=True))[0].id == made
            with pytest.raises(UnknownNameError):
                await client.cancel("none")

    run_apart(use())


def test_a_service_is_found_by_the_environment_or_its_directory(tmp_path: Path) -> None:
    there = {"ONES_URL": "http://a", "ONES_API_TOKEN": "t"}
    assert find(None, there) == Connection("http://a", "t")
    with pytest.raises(WorldError, match="no service is running"):
        find(tmp_path, {})


def test_the_client_loads_no_web_server() -> None:
    code = "import sys, ones.client.clients; print({'fastapi', 'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_job_runs_a_snapshot(client: Client, service: Inside, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("as submitted")
    made = client.submit(["cat", "text"], cwd=tmp_path, snapshot=True, gpus=1)
    first = client.job(made.id)

    def answer(request: httpx.Request) -> httpx.Response:
        kind = {"Content-Type": request.headers.get("content-type", "")}
        sent = service.http.request(
            request.method, str(request.url), content=request.content, headers=kind
        )
        return httpx.Response(sent.status_code, json=sent.json())

    async def again() -> str:
        async with AsyncClient(URL, "token") as other:
            other._http = httpx.AsyncClient(base_url=URL, transport=httpx.MockTransport(answer))
            made = await other.submit(["cat", "text"], cwd=tmp_path, snapshot=True, gpus=1)
            return (await other.job(made.id)).snapshot

    assert run_apart(again()) == first.snapshot
    assert (first.root, len(first.snapshot)) == (str(tmp_path), 64)
    with pytest.raises(UserError, match="max_batch: 1 is less than min_batch"):
        client.submit(["cat"], cwd=tmp_path, snapshot=True, min_batch=2, max_batch=1)
