"""Slots that are close to one another, in the live service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, group_size=2)
    world.up()
    yield world
    world.down()


def where(world: World, job: str) -> list[str]:
    return [worker["gpu"] for worker in world.wait_state(job, "running")["workers"]]


def test_a_pair_is_not_broken_while_a_whole_one_is_free(world: World) -> None:
    def run(gpus: int) -> str:
        return world.run(["sleep", "100"], elastic=False, requested_gpus=gpus)

    assert [slot["group"] for slot in world.get("/api/cluster")["slots"]] == [0, 0, 1, 1]
    one = run(1)
    assert where(world, one) == ["local/0"]
    two = run(2)
    assert where(world, two) == ["local/2", "local/3"]
    world.settings["group_size"] = 0
    world.restart()
    assert {slot["group"] for slot in world.get("/api/cluster")["slots"]} == {None}
    assert where(world, two) == ["local/2", "local/3"], "a running job keeps its GPUs"
    for job in (one, two):
        world.post(f"/api/jobs/{job}/cancel")
        world.wait_end(job)
