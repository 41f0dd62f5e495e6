"""Messages about jobs: to a URL with a signature, or to a command; with retries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ones.control.notifications import is_open_address
from ones.control.notifier import signature
from tests.control.inside import Inside, inside
from tests.processes import wait_for


class Hook:
    """A web server that notes requests. The first `broken` ones get status 500."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.broken = 0
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append((dict(self.headers), body))
                fails, hook.broken = hook.broken > 0, max(0, hook.broken - 1)
                self.send_response(500 if fails else 200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def events(self, job: str) -> list[str]:
        bodies = [json.loads(body) for _, body in list(self.got)]
        return [body["event"] for body in bodies if body["job"]["id"] == job]


@contextmanager
def serving() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hook
    finally:
        hook.server.shutdown()
        thread.join()
        hook.server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("notify"), slots=2) as found:
        found.service.notifier._pauses = (0.01, 0.02)
        yield found


def add(service: Inside, **wish: Any) -> Any:  # noqa: ANN401
    answer = service.http.post("/api/notifications", json=wish)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_url_is_called_with_a_signature_until_it_answers(service: Inside, hook: Hook) -> None:
    wish = add(service, url=hook.url, tag="told")
    hook.broken = 2
    job = service.submit(command=["true"], tags=["told"]).json()["id"]
    service.submit(command=["true"])
    wait_for(lambda: sorted(set(hook.events(job))) == ["end", "start"], "it is not told")
    wait_for(lambda: len(hook.got) >= 4, "a failed delivery is not tried again")
    headers, body = hook.got[-1]
    signed = signature(wish["secret"], headers["X-ONES-Time"], body)
    assert headers["X-ONES-Signature"] == signed
    assert {json.loads(body)["job"]["id"] for _, body in hook.got} == {job}
    ends = [json.loads(body) for _, body in hook.got if json.loads(body)["event"] == "end"]
    assert ends[0]["text"] == f"{job} has ended: finished"
    assert len({headers["X-ONES-Delivery"] for headers, _ in hook.got}) == 2
    (listed,) = service.http.get("/api/notifications").json()
    wait_for(lambda: service.service.notifier.last[wish["number"]] == "delivered")
    assert "secret" not in listed
    assert service.http.delete(f"/api/notifications/{wish['number']}").status_code == 200
    assert service.http.get("/api/notifications").json() == []


def test_a_command_is_told_of_failures_and_preemptions(service: Inside, tmp_path: Path) -> None:
    out = tmp_path / "told"
    script = f'cat > /dev/null; echo "$ONES_EVENT $ONES_JOB $ONES_STATE" >> {out}'
    wish = add(service, command=["sh", "-c", script], events=["failure", "preemption"])
    failing = service.submit(command=["false"]).json()["id"]
    wait_for(lambda: out.exists() and f"failure {failing} failed\n" in out.read_text())
    running = service.submit().json()["id"]
    wait_for(lambda: service.http.get(f"/api/jobs/{running}").json()["state"] == "running")
    card = service.service.board.cards[running]
    service.service.notifier.take(replace(card, preemptions=1))
    wait_for(lambda: f"preemption {running} " in out.read_text())
    service.http.post(f"/api/jobs/{running}/cancel")
    service.http.delete(f"/api/notifications/{wish['number']}")


def test_a_delivery_is_tried_by_hand(service: Inside, hook: Hook) -> None:
    wish = add(service, url=hook.url)
    tried = service.http.post(f"/api/notifications/{wish['number']}/test")
    assert (tried.status_code, hook.events("example-0")) == (200, ["end"])
    hook.broken = 1
    tried = service.http.post(f"/api/notifications/{wish['number']}/test")
    told = f"notification {wish['number']}: answered with HTTP status 500"
    assert (tried.status_code, tried.json()) == (422, {"error": told})
    service.http.delete(f"/api/notifications/{wish['number']}")


def test_users_run_no_command_and_do_not_call_the_controller_s_machine(
    service: Inside, hook: Hook
) -> None:
    ann = service.add_user("ann")
    command = service.http.post("/api/notifications", json={"command": ["id"]}, headers=ann)
    assert (command.status_code, "only admins may" in command.json()["error"]) == (403, True)
    hers = service.http.post("/api/notifications", json={"url": hook.url}, headers=ann).json()
    tried = service.http.post(f"/api/notifications/{hers['number']}/test", headers=ann)
    assert "only admins may call the controller's machine" in tried.json()["error"]
    assert hook.got == []
    bob = service.add_user("bob")
    assert service.http.get("/api/notifications", headers=bob).json() == []
    number = hers["number"]
    assert service.http.delete(f"/api/notifications/{number}", headers=bob).status_code == 404
    assert service.http.delete(f"/api/notifications/{number}").status_code == 200


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, "give either a url or a command"),
        ({"url": "https://a", "command": ["x"]}, "give either a url or a command"),
        ({"url": "ftp://a/b"}, "'ftp://a/b' is not a URL"),
        ({"url": "https://user@a/b"}, "is not a URL"),
        ({"url": "https://a", "events": ["begin"]}, "events: 'begin' is not one of start, end"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(
    service: Inside, wish: dict[str, Any], words: str
) -> None:
    refused = service.http.post("/api/notifications", json=wish)
    assert refused.status_code == 422
    assert words in refused.json()["error"]


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        ("10.1.2.3", True), ("93.184.216.34", True), ("127.0.0.1", False), ("::1", False),
        ("169.254.169.254", False), ("fe80::1%eth0", False), ("0.0.0.0", False),
        ("::ffff:127.0.0.1", False),
    ],
)  # fmt: skip
def test_addresses_that_users_may_call(address: str, is_open: bool) -> None:
    assert is_open_address(address) == is_open


def test_notifications_survive_a_restart(tmp_path: Path, hook: Hook) -> None:
    with inside(tmp_path) as first:
        add(first, url=hook.url)
    with inside(tmp_path) as second:
        (kept,) = second.http.get("/api/notifications").json()
        assert kept["url"] == hook.url
