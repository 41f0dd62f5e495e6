"""Commands against a service in this process: no socket, no second process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ones.cli.client import Client
from tests.control.inside import URL, Inside, inside


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with inside(tmp_path_factory.mktemp("service"), slots=2) as found:
        yield found


@pytest.fixture
def served(service: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """The service of this module, which all commands reach; its jobs end with the test."""

    def begin(self: Client, *connection: str) -> None:
        self.url, self.is_local = connection[0], False
        self.__dict__["_http"] = service.http

    for variable in [name for name in os.environ if name.startswith("ONES_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONES_URL", URL)
    monkeypatch.setenv("ONES_API_TOKEN", "of the client above")
    monkeypatch.setattr(Client, "__init__", begin)
    yield service
    for job in service.http.get("/api/jobs").json():
        service.http.post(f"/api/jobs/{job['id']}/cancel")
