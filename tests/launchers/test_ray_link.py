"""A link and the manager of its node, with Ray's part between them played by threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ones.launchers.devices import cpu_slots
from ones.launchers.probe import Probe
from ones.launchers.ray.actors import RayNode
from ones.launchers.ray.link import Link
from ones.launchers.ray.manager import NodeManager
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.options import RayOptions
from tests.processes import PATIENCE, is_alive, wait_for

ENV = {"PATH": os.environ["PATH"]}


class Actor:
    """`actor.poll.remote(...)` is a future, as it is with Ray."""

    def __init__(self, manager: NodeManager) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        class Method:
            def remote(_, *words: Any) -> asyncio.Future[Any]:  # noqa: N805
                call = partial(getattr(self._manager, name), *words)
                return asyncio.get_running_loop().run_in_executor(None, call)

        return Method()


class Bridge:
    """One node, whose manager is there from an earlier time."""

    def __init__(self, root: Path, manager: NodeManager) -> None:
        self.options = RayOptions(address="h:1", instance="i", lease_seconds=60.0)
        self.managers: Any = self
        self.mirror = Mirror(root / "mirror")
        self.mirror.make()
        self.probe: Probe | None = None
        self.loop = asyncio.get_running_loop()
        self.manager = manager
        self.said: list[dict[str, Any]] = []
        self.alive_at_licence: list[bool] = []

    # as `actors.Managers`

    def find(self, node: str) -> Actor:
        return Actor(self.manager)

    def license(self, node: str) -> None:
        self.alive_at_licence.append(
            any(p.alive for p in self.manager._launcher.running().values())
        )

    # as the bridge

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)

    def look_at(self, task: asyncio.Task[None]) -> None:
        assert task.cancelled() or task.exception() is None

    async def apart(self, what: Callable[[], Any], seconds: float = PATIENCE) -> Any:  # noqa: ANN401
        return await asyncio.wait_for(self.loop.run_in_executor(None, what), seconds)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NodeManager]:
    manager = NodeManager(tmp_path / "node", cpu_slots("n0", 1), 60.0, lambda timeout: True)
    given: dict[str, Any] = {"id": "1-a", "job": "j", "slots": ["n0/0"], "argv": ["sleep", "1000"]}
    manager.launch({**given, "cwd": "/", "env": ENV})
    wait_for(lambda: manager.poll(0, {}, 0.0)["launches"]["1-a"][1])
    yield manager
    manager.close()


async def attach(root: Path, manager: NodeManager, *, is_known: bool) -> Bridge:
    bridge = Bridge(root, manager)
    link = Link(bridge, "n0", "RAY", RayNode("RAY", "n0", "h", {"ones": 1.0}), is_known=is_known)
    link.begin()
    async with asyncio.timeout(PATIENCE):
        while not link.told:
            await asyncio.sleep(0.01)
    link._finish()
    return bridge


@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_given_up_ends_before_its_node_may_work_again(
    tmp_path: Path, manager: NodeManager, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """A manager that was frozen, or whose head came back, may have slept through all of it."""
    monkeypatch.setattr("ones.launchers.ray.link.POLL_SECONDS", 0.1)  # its threads end with it
    pid = manager.poll(0, {}, 0.0)["launches"]["1-a"][1]
    with ThreadPoolExecutor(1) as apart:  # browser tests leave a loop in this thread
        bridge = apart.submit(
            lambda: asyncio.run(attach(tmp_path, manager, is_known=is_known))
        ).result()
    assert bridge.alive_at_licence == [is_known]
    assert is_alive(pid) is is_known
    assert [word["node"] for word in bridge.said if word.get("event") == "node"] == ["n0"]
