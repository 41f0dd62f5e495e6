"""Services for tests. Nothing may be left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.world import World


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**settings: Any) -> World:
        world = World(tmp_path / str(len(worlds)), **settings)
        world.root.mkdir()
        worlds.append(world)
        world.up()
        return world

    yield make
    for world in worlds:
        world.down()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all tests of a module that only want to use it."""
    world = World(tmp_path_factory.mktemp("world"), keep_environments=True)
    world.up()
    yield world
    world.down()
