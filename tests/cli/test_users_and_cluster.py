"""`ones user` and `ones cluster`, against a real service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"), slots=2)
    world.up()
    yield world
    world.down()


def ones(world: World, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("ones"), *words],
        capture_output=True, text=True, check=False, timeout=300, cwd=world.root,
        env={**os.environ, "ONES_SERVICE_STATE": str(world.dir.path), **env},
    )  # fmt: skip


def test_a_user_is_added_limited_used_and_removed(world: World) -> None:
    added = ones(world, "user", "add", "ann", "--max-gpus", "1")
    assert added.returncode == 0, added.stderr
    token = added.stdout.strip()
    assert f"ONES_URL={world.http.base_url}".rstrip("/") in added.stderr
    listed = json.loads(ones(world, "user", "list", "--json").stdout)
    assert {"name": "ann", "role": "user", "max_gpus": 1, "unix": None} in listed
    hers = {"ONES_URL": str(world.http.base_url), "ONES_API_TOKEN": token}
    assert ones(world, "ps", **hers).returncode == 0
    denied = ones(world, "user", "list", **hers)
    assert (denied.returncode, denied.stderr) == (2, "ones: ann is not an admin\n")
    assert "ann: no limit" in ones(world, "user", "limit", "ann", "none").stderr
    wrong = ones(world, "user", "limit", "ann", "many")
    assert "max_gpus: 'many' is neither a number nor `none`" in wrong.stderr
    again = ones(world, "user", "token", "ann", "--json")
    assert json.loads(again.stdout)["token"] != token
    assert ones(world, "ps", **hers).returncode == 2, "the old one is void"
    assert "did you mean 'ann'?" in ones(world, "user", "remove", "anna").stderr
    assert ones(world, "user", "remove", "ann").returncode == 0
    assert "ann" not in ones(world, "user", "list").stdout
    me = world.get("/api/me")["name"]
    oneself = ones(world, "user", "remove", me)
    assert (oneself.returncode, "is you" in oneself.stderr) == (2, True)


def test_the_cluster_is_shown_and_drained(world: World) -> None:
    assert "local/1" in ones(world, "cluster").stdout
    drained = ones(world, "cluster", "drain", "local/1")
    assert (drained.returncode, drained.stderr) == (0, "local/1: draining\n")
    shown = json.loads(ones(world, "cluster", "--json").stdout)
    assert [slot["state"] for slot in shown["slots"]] == ["up", "draining"]
    assert "drained by" in ones(world, "cluster").stdout
    ones(world, "cluster", "drain", "local")
    node = ones(world, "cluster", "undrain", "local").stderr
    assert "local: in use again, except local/1 (drained by " in node
    assert ones(world, "cluster", "undrain", "local/1").stderr == "local/1: in use again\n"
    ones(world, "cluster", "drain", "local")
    gpu = ones(world, "cluster", "undrain", "local/1").stderr
    assert "local/1: still out of service: its node is draining" in gpu
    assert ones(world, "cluster", "undrain", "local").stderr == "local: in use again\n"
    unknown = ones(world, "cluster", "drain", "lokal")
    assert (unknown.returncode, "did you mean 'local'" in unknown.stderr) == (2, True)


def test_the_audit_is_listed_for_admins(world: World) -> None:
    assert ones(world, "user", "add", "eve").returncode == 0
    token = json.loads(ones(world, "user", "token", "eve", "--json").stdout)["token"]
    listed = ones(world, "audit", "--user", "eve")
    assert listed.returncode == 0, listed.stderr
    assert "user added" in listed.stdout
    assert token not in listed.stdout
    rows = json.loads(ones(world, "audit", "--json", "--user", "eve", "--since", "1h").stdout)
    assert [row["action"] for row in rows] == ["token renewed", "user added"]
    assert len(json.loads(ones(world, "audit", "--json", "--limit", "1").stdout)) == 1
    wrong = ones(world, "audit", "--since", "long ago")
    assert wrong.returncode == 2
    assert "--since: 'long ago' is neither a duration" in wrong.stderr
    hers = {"ONES_URL": str(world.http.base_url), "ONES_API_TOKEN": token}
    assert "eve is not an admin" in ones(world, "audit", **hers).stderr
