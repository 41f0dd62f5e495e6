"""The outermost layer: names of the service, texts that are no Unicode, and our own bugs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from ones.control.api import Gate
from ones.control.api.gate import known_hosts
from ones.control.readmodels.job_cards import card_from
from ones.control.schema import ended_cards
from ones.control.store import upsert
from tests.control.inside import URL, Inside, inside


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    root = tmp_path_factory.mktemp("gate")
    with inside(root, advertise="head.example", allowed_hosts="ones.lab, proxy") as found:
        yield found


def test_a_request_for_another_host_is_refused_on_every_path(service: Inside) -> None:
    for path in ("/health", "/", "/api/jobs", "/worker/reports", "/metrics"):
        answer = service.http.get(path, headers={"Host": "evil.example:8642"})
        assert answer.status_code == 421
        assert answer.json() == {
            "error": "Host: 'evil.example:8642' is not a name of this service; add it to the"
            " setting allowed_hosts"
        }
    for host in ("head.example", "HEAD.example:1", "ones.lab:8642", "proxy", "localhost:9",
                 "[::1]:80", "127.0.0.1"):  # fmt: skip
        assert service.http.get("/api/me", headers={"Host": host}).status_code == 200, host


def test_a_service_on_all_addresses_is_reached_at_each_of_them(service: Inside) -> None:
    inner = Gate(_fine, service.service, known_hosts("0.0.0.0", "", ""))

    async def at_address(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        await inner(scope | {"server": ("10.1.2.3", 8642)}, receive, send)

    assert TestClient(at_address, "http://10.1.2.3:8642").get("/x").status_code == 204
    assert TestClient(at_address, "http://10.9.9.9:8642").get("/x").status_code == 421


async def _fine(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_bug_is_one_line_to_the_client_and_a_traceback_in_the_log(
    service: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        raise ZeroDivisionError("secret detail")

    client = TestClient(Gate(broken, service.service, ["127.0.0.1"]), URL)
    with caplog.at_level(logging.ERROR):
        answer = client.get("/anything")
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error of ONES; see the controller's log"}
    assert "GET /anything: unexpected exception" in caplog.text
    assert "ZeroDivisionError: secret detail" in caplog.text


def test_a_handler_with_a_bug_answers_the_same(
    service: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(service.service.accounts, "all", fail)
    answer = service.http.get("/api/users")
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error of ONES; see the controller's log"}


@pytest.mark.parametrize(
    "body",
    [
        '{"command": ["\\ud800"], "cwd": "/"}',
        '{"command": ["true"], "cwd": "/", "name": "\\ud800"}',
        '{"command": ["true"], "cwd": "/", "env": {"\\ud800": "x"}}',
        '{"command": ["true"], "cwd": "/", "env": {"X": "\\udfff"}}',
        '{"command": ["true"], "cwd": "/", "\\ud800": 1}',
    ],
)
def test_a_text_that_is_no_unicode_is_refused(service: Inside, body: str) -> None:
    answer = service.http.post("/api/jobs", content=body)
    assert answer.status_code == 422, answer.text
    assert list(answer.json()) == ["error"]


def test_a_row_of_before_with_such_a_text_is_shown_all_the_same(service: Inside) -> None:
    job = service.submit().json()["id"]
    service.http.post(f"/api/jobs/{job}/cancel")
    board = service.service.board
    kept = {**msgspec.to_builtins(board.cards[job]), "id": "old-1", "message": "died: \ud800"}
    service.service.store.write_now(
        upsert(ended_cards, {"job": "old-1", "submitted_at": 0.0, "body": json.dumps(kept)})
    )
    board.cards["old-1"] = card_from(json.dumps(kept))
    shown = {j["id"]: j["message"] for j in service.http.get("/api/jobs?all=true").json()}
    assert shown["old-1"] == "died: ?"
    assert service.http.get("/api/jobs/old-1").status_code == 200
