"""How users of this machine are known, and whether a second user is accepted."""

from __future__ import annotations

import getpass
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from ones.control.accounts import Accounts
from ones.control.schema import submissions
from ones.control.store import Store
from ones.control.submission import Submission
from ones.errors import InvalidSettingError
from tests.control.world import World
from tests.processes import wait_for


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: that of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ones-") as path:
        yield Path(path)


@pytest.fixture
def world(directory: Path) -> Iterator[World]:
    world = World(directory, socket=str(directory / "sock"), trusting=False)
    world.up()
    yield world
    world.down()


def local(path: Path) -> httpx.Client:
    return httpx.Client(base_url="http://localhost", transport=httpx.HTTPTransport(uds=str(path)))


def test_the_kernel_says_who_calls_on_the_socket(world: World, directory: Path) -> None:
    me = getpass.getuser()
    with local(directory / "sock") as http:
        refused = http.get("/api/me")
        assert refused.status_code == 401
        assert f"ones user add {me} --unix {me}" in refused.json()["error"]
        admin = world.get("/api/me")["name"]
        assert world.http.put(f"/api/users/{admin}/unix", json={"unix": me}).status_code == 200
        found = http.get("/api/me", headers={"X-Forwarded-For": "unix:0"}).json()
        assert found == {"name": admin, "role": "admin", "max_gpus": None, "unix": me}
        job = http.post("/api/jobs", json={"command": ["true"], "cwd": "/", "env": {"A": "b"}})
        assert job.status_code == 201
        assert http.get("/api/me", headers={"Authorization": "Bearer x"}).status_code == 401
    lie = {"X-Forwarded-For": f"unix:{os.getuid()}"}
    tcp = str(world.http.base_url)
    assert httpx.get(f"{tcp}/api/me", headers=lie).status_code == 401


def test_a_second_user_is_refused_where_all_jobs_run_as_one(world: World) -> None:
    refused = world.http.post("/api/users", json={"name": "ann"})
    assert refused.status_code == 422
    assert "--trusting" in refused.json()["error"]
    assert world.get("/api/cluster")["isolation"] == f"jobs of all users run as {getpass.getuser()}"


def test_the_environment_leaves_the_database_with_the_job(world: World) -> None:
    secret = secrets.token_hex()
    body = {"command": ["true"], "cwd": "/", "env": {"PATH": os.environ["PATH"], "KEY": secret}}
    job = world.post("/api/jobs", body, 201)["id"]
    engine = sa.create_engine(world.dir.database)

    def env() -> dict[str, str]:
        with engine.connect() as connection:
            query = sa.select(submissions.c.body).where(submissions.c.job == job)
            return dict(Submission.decoded(str(connection.execute(query).scalar())).env)

    try:
        wait_for(lambda: not env(), "the environment is kept")
    finally:
        engine.dispose()
    assert world.get(f"/api/jobs/{job}")["id"] == job


def test_a_unix_user_belongs_to_one_user(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'db'}")
    try:
        accounts = Accounts(store)
        accounts.add("ann", "user", "ann")
        with pytest.raises(InvalidSettingError, match="is the Unix user of ann already"):
            accounts.add("bob", "user", "ann")
        accounts.renew("ann")
        accounts.add("bob", "user")
        assert accounts.set_unix("bob", "bob").unix == "bob"
        assert accounts.set_unix("ann", None).unix is None
        again = Accounts(store)
        assert again.by_unix("bob") == again.get("bob")
        assert again.by_unix("ann") is None
    finally:
        store.close()
