"""A monitor and the agent of its node, with Ray's part between them played by threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ones.launchers import Sampled
from ones.launchers.devices import cpu_slots
from ones.launchers.probe import Probe
from ones.launchers.ray.actors import RayNode
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.node_agent import RayNodeAgent
from ones.launchers.ray.node_monitor import NodeMonitor
from ones.launchers.ray.settings import RayOptions
from ones.wire.samples import SlotSample, samples_of
from tests.processes import PATIENCE, is_alive, wait_for

ENV = {"PATH": os.environ["PATH"]}


class Actor:
    """`actor.poll.remote(...)` is a future, as it is with Ray."""

    def __init__(self, agent: RayNodeAgent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        class Method:
            def remote(_, *words: Any) -> asyncio.Future[Any]:  # noqa: N805
                call = partial(getattr(self._agent, name), *words)
                return asyncio.get_running_loop().run_in_executor(None, call)

        return Method()


class Driver:
    """One node with the agent of an earlier service."""

    def __init__(self, root: Path, agent: RayNodeAgent) -> None:
        self.options = RayOptions(address="h:1", instance="i", lease_seconds=60.0)
        self.agents: Any = self
        self.mirror = Mirror(root / "mirror")
        self.mirror.make()
        self.probe: Probe | None = None
        self.loop = asyncio.get_running_loop()
        self.agent = agent
        self.sent: list[dict[str, Any]] = []
        self.alive_at_licence: list[bool] = []

    # as `actors.NodeAgents`

    def find(self, node: str) -> Actor:
        return Actor(self.agent)

    def license(self, node: str) -> None:
        self.alive_at_licence.append(any(p.alive for p in self.agent._launcher.running().values()))

    # as the driver

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def check_task(self, task: asyncio.Task[None]) -> None:
        assert task.cancelled() or task.exception() is None

    async def in_thread(self, work: Callable[[], Any], seconds: float = PATIENCE) -> Any:  # noqa: ANN401
        return await asyncio.wait_for(self.loop.run_in_executor(None, work), seconds)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RayNodeAgent]:
    agent = RayNodeAgent(tmp_path / "node", cpu_slots("n0", 1), 60.0, lambda timeout: True)
    given: dict[str, Any] = {"id": "1-a", "job": "j", "slots": ["n0/0"], "argv": ["sleep", "1000"]}
    agent.handle({"do": "launch", "launch": {**given, "cwd": "/", "env": ENV}})
    wait_for(lambda: agent.poll(0, {}, 0.0)["launches"]["1-a"][1])
    yield agent
    agent.close()


async def attach(root: Path, agent: RayNodeAgent, *, is_known: bool) -> Driver:
    driver = Driver(root, agent)
    monitor = NodeMonitor(
        driver, "n0", "RAY", RayNode("RAY", "n0", "h", {"ones": 1.0}), is_known=is_known
    )
    monitor.begin()
    async with asyncio.timeout(PATIENCE):
        while not monitor.is_reported:
            await asyncio.sleep(0.01)
    monitor._finish()
    return driver


@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_given_up_ends_before_its_node_may_work_again(
    tmp_path: Path, agent: RayNodeAgent, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """An agent that was frozen, or that lost its head node, may have missed all events."""
    monkeypatch.setattr(
        "ones.launchers.ray.node_monitor.POLL_SECONDS", 0.1
    )  # its threads end with it
    pid = agent.poll(0, {}, 0.0)["launches"]["1-a"][1]
    with ThreadPoolExecutor(1) as apart:  # browser tests leave a loop in this thread
        driver = apart.submit(
            lambda: asyncio.run(attach(tmp_path, agent, is_known=is_known))
        ).result()
    assert driver.alive_at_licence == [is_known]
    assert is_alive(pid) is is_known
    assert [word["node"] for word in driver.sent if word.get("event") == "node"] == ["n0"]


async def sampled(root: Path, agent: RayNodeAgent, sample: SlotSample) -> list[dict[str, Any]]:
    driver = Driver(root, agent)
    monitor = NodeMonitor(
        driver, "n0", "RAY", RayNode("RAY", "n0", "h", {"ones": 1.0}), is_known=True
    )
    monitor.begin()
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE):
        while not found:
            await asyncio.sleep(0.01)
            if monitor.is_reported:
                agent._on_launcher(Sampled((sample,)))
            found = [message for message in driver.sent if message.get("event") == "sampled"]
    monitor._finish()
    return found


def test_samples_of_a_node_are_passed_on(
    tmp_path: Path, agent: RayNodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.launchers.ray.node_monitor.POLL_SECONDS", 0.1)
    sample = SlotSample(launch="1-a", slot="n0/0", cpus=0.5)
    with ThreadPoolExecutor(1) as apart:
        sent = apart.submit(lambda: asyncio.run(sampled(tmp_path, agent, sample))).result()
    assert sent[0]["node"] == "n0"
    assert samples_of(sent[0]["samples"]) == (sample,)
