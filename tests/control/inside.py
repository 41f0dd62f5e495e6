"""A real service in this process, behind its real HTTP layers but without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from ones.config import ServiceSettings, half_life_seconds
from ones.control.api import Gate, WorkerApi, create_app
from ones.control.api.gate import known_hosts
from ones.control.controller import Options
from ones.control.launching import launcher_of
from ones.control.limits import Limits
from ones.control.page import add_page
from ones.control.service import Service
from ones.control.statedir import StateDir
from tests.control.world import ENV

URL = "http://127.0.0.1"


class Inside:
    def __init__(self, service: Service, http: TestClient, worker: TestClient) -> None:
        self.service = service
        self.http = http  # of the admin
        self.bare = worker  # without a token

    def add_user(self, name: str, role: str = "user") -> dict[str, str]:
        """The header with their token."""
        answer = self.http.post("/api/users", json={"name": name, "role": role})
        assert answer.status_code == 201, answer.text
        return bearer(answer.json()["token"])

    def submit(self, headers: dict[str, str] | None = None, **more: Any) -> Any:  # noqa: ANN401
        return self.http.post("/api/jobs", json=new_job(**more), headers=headers)

    def audit(self, **query: Any) -> list[dict[str, Any]]:
        answer = self.http.get("/api/audit", params=query)
        assert answer.status_code == 200, answer.text
        rows: list[dict[str, Any]] = answer.json()
        return rows


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def new_job(**more: Any) -> dict[str, Any]:
    return {"command": ["sleep", "100"], "cwd": "/", "env": ENV, "gpus": 1, **more}


@contextmanager
def inside(root: Path, **settings: Any) -> Iterator[Inside]:
    """One CPU slot; policy fifo; all settings of the service may be given."""
    chosen = ServiceSettings(**{"state": str(root / "state"), "slots": 1, **settings})
    directory = StateDir.of(chosen.state)
    directory.make()
    options = replace(
        Options(policy=settings.get("policy", "fifo")),
        limits=Limits.of(chosen),
        half_life=half_life_seconds(chosen.fair_share_half_life_hours),
    )
    service = Service(directory, launcher_of(chosen, directory, lambda: URL), options)
    service.start(URL)
    try:
        service.first_admin()
        app = create_app(service)
        add_page(app)
        hosts = known_hosts(chosen.host, chosen.advertise, chosen.allowed_hosts)
        gate = Gate(WorkerApi(app, service), service, hosts)
        token = directory.read_token() or ""
        with (
            TestClient(gate, URL, headers=bearer(token), follow_redirects=False) as http,
            TestClient(gate, URL, follow_redirects=False) as worker,
        ):
            yield Inside(service, http, worker)
    finally:
        service.closing = True
        service.stop(kill=True)
