"""The driver's monitor of one node: creates its agent, polls it, and decides when it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from ones.launchers.probe import Probe
from ones.launchers.ray.actors import NodeAgents, RayNode, free_slots_on
from ones.launchers.ray.launch_tracker import LaunchTracker
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.settings import MARGIN_SECONDS, RayOptions

POLL_SECONDS = 5.0
ANSWER_SECONDS = 5.0  # longest time for an answer, besides what a poll waits
CREATE_SECONDS = 60.0
FREE_SECONDS = 5.0
RETRY_SECONDS = 0.3
UNFIT_SECONDS = 10.0  # until a node that was unfit is checked again


class MonitorHost(Protocol):
    """The interface of the driver that a monitor uses."""

    options: RayOptions
    agents: NodeAgents
    mirror: Mirror
    probe: Probe | None
    loop: asyncio.AbstractEventLoop

    def send(self, message: dict[str, Any]) -> None: ...

    def check_task(self, task: asyncio.Task[None]) -> None: ...

    async def in_thread(self, work: Callable[[], Any]) -> Any: ...  # noqa: ANN401


class NodeMonitor:
    """`node` is None if an earlier driver knew the node and it is not in the cluster now.

    `is_known`: the launcher knows the node and its workers; else workers there were given up.
    """

    def __init__(
        self, driver: MonitorHost, name: str, id: str, node: RayNode | None, *, is_known: bool
    ) -> None:
        self._driver, self.name, self._id, self._node = driver, name, id, node
        self._is_known = is_known
        self.is_listed = node is not None  # Ray lists it as alive
        self.is_reported = False  # the launcher knows the node, or why it cannot be used
        self.is_over = False
        self._actor: Any = None
        self._tracker = LaunchTracker(name, driver.mirror, driver.send)
        self._version = 0
        self._failing_since: float | None = None
        self._cause = ""
        self._revoked_at: float | None = None
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        loop = self._driver.loop
        self._tasks = [
            loop.create_task(work) for work in (self._follow(), self._serve(), self._watch())
        ]
        for task in self._tasks:
            task.add_done_callback(self._driver.check_task)

    def request(self, request: dict[str, Any]) -> None:
        self._requests.put_nowait(request)

    # polling

    async def _follow(self) -> None:
        while not self.is_over:
            try:
                if self._actor is None:
                    await self._attach()
                else:
                    await self._poll()
            except Exception as problem:
                self._failed(problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _attach(self) -> None:
        """Finds the agent or creates one, and checks whether the node can be used."""
        driver, agents, node = self._driver, self._driver.agents, self._node
        if node is None or not self.is_listed:
            raise ConnectionError("the node is not in the cluster any more")
        if self._revoked_at is not None:
            raise ConnectionError("the node was cut off for too long")
        actor = await driver.in_thread(lambda: agents.find(self.name))
        if actor is not None and not self._is_known:
            await self._clear(actor)  # it may have been frozen when its lease expired
        await driver.in_thread(lambda: agents.license(self.name))
        if actor is None:
            count = await self._free_slots(node)
            if count < 1:
                self._report_unfit(
                    f"other users of the cluster use all of its {driver.options.slot_resource}"
                )
                return
            actor = await driver.in_thread(lambda: agents.make(node, count))
        slots = await asyncio.wait_for(actor.describe.remote(), CREATE_SECONDS)
        problem = await asyncio.wait_for(
            actor.check.remote(driver.options.controller, driver.probe), CREATE_SECONDS
        )
        if problem:
            await self._kill(actor)
            self._report_unfit(problem)
            return
        answer = await asyncio.wait_for(actor.poll.remote(0, {}, 0.0), ANSWER_SECONDS)
        launches = {id: pid for id, (_, pid, _) in answer["launches"].items()}
        self._actor, self._version = actor, 0
        driver.send(
            {
                "event": "node",
                "node": self.name,
                "ray": self._id,
                "slots": slots,
                "launches": launches,
            }
        )
        self.is_reported = self._is_known = True
        self._failing_since = None

    async def _free_slots(self, node: RayNode) -> int:
        """The number of free slots. Waits: Ray frees the slots of an ended agent with delay."""
        until = time.monotonic() + FREE_SECONDS
        options = self._driver.options
        while True:
            count: int = await self._driver.in_thread(lambda: free_slots_on(node, options))
            if count or time.monotonic() > until:
                return count
            await asyncio.sleep(0.1)

    def _report_unfit(self, cause: str) -> None:
        """Reports that the node cannot be used. The driver makes a new monitor later."""
        self._driver.send({"event": "unfit", "node": self.name, "cause": cause})
        self.is_reported = True
        self._driver.loop.call_later(UNFIT_SECONDS, self._finish)
        self._ending = True
        self._tasks[0].cancel()

    async def _poll(self) -> None:
        copied = self._tracker.copied
        wait = 0.0 if self._tracker.has_exits else POLL_SECONDS
        answer = await asyncio.wait_for(
            self._actor.poll.remote(self._version, copied, wait), wait + ANSWER_SECONDS
        )
        if self._revoked_at is None and answer["licensed"]:
            self._failing_since = None
        elif not answer["licensed"] and answer["alive"] == 0:
            # it answers again after its licence was revoked: it can join as a new node
            self._report_lost("the node was cut off for too long")
        self._version = answer["version"]
        self._tracker.update(answer, copied)
        if samples := answer.get("samples"):  # an agent of an earlier version has none
            self._driver.send({"event": "sampled", "node": self.name, "samples": samples})

    # failures

    def _failed(self, problem: Exception) -> None:
        """Reports the node as suspect: its workers may run until its lease expires."""
        if self._ending:
            return
        if _is_dead(problem):
            self._actor = None  # created again if the node is still there
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            lines = str(problem).strip().splitlines()
            self._cause = lines[0] if lines else type(problem).__name__
            self._driver.send({"event": "suspect", "node": self.name, "cause": self._cause})

    async def _watch(self) -> None:
        """If failures last: revokes the licence, waits for the end of the lease, reports the loss.

        A task of its own, because calls in `_follow` may take long in that case.
        """
        driver, lease = self._driver, self._driver.options.lease_seconds
        while not self.is_over:
            await asyncio.sleep(RETRY_SECONDS)
            if not self.is_listed and not self._ending:
                self._failed(ConnectionError("Ray reports that the node is dead"))
            if self._failing_since is None:
                continue
            now = time.monotonic()
            if self._revoked_at is None:
                if not self.is_listed or now > self._failing_since + lease:
                    await driver.in_thread(lambda: driver.agents.revoke(self.name))
                    self._revoked_at = time.monotonic()
            elif now > self._revoked_at + lease + MARGIN_SECONDS:
                self._report_lost(self._cause)

    def _report_lost(self, cause: str) -> None:
        self._driver.send({"event": "lost", "node": self.name, "cause": cause})
        self.is_reported = True
        self._finish()

    def _finish(self) -> None:
        self.is_over = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        while not self._requests.empty():
            number = self._requests.get_nowait()["n"]
            self._driver.send({"n": number, "error": f"node {self.name} is lost"})

    # requests, in order

    async def _serve(self) -> None:
        while True:
            request = await self._requests.get()
            while not self.is_over:
                try:
                    await self._pass_on(request)
                except Exception:
                    if request["do"] != "prepare":  # `prepare` may be dropped
                        await asyncio.sleep(RETRY_SECONDS)  # `_follow` handles the failure
                        continue
                self._driver.send({"n": request["n"]})
                break

    async def _pass_on(self, request: dict[str, Any]) -> None:
        if self._actor is None:
            raise ConnectionError("no agent yet")
        await asyncio.wait_for(self._actor.handle.remote(request), ANSWER_SECONDS)

    async def end(self) -> None:
        """Ends all workers, then the agent."""
        self._ending = True
        actor = self._actor
        if actor is None and self._failing_since is None:
            return  # there is no agent
        if actor is None:
            raise ConnectionError(self._cause)
        await self._clear(actor, grace=5.0)
        while self._tracker:  # until their last output is copied
            await asyncio.sleep(0.05)
        self.is_over = True
        await asyncio.wait_for(actor.close.remote(), ANSWER_SECONDS)
        await self._kill(actor)

    async def _clear(self, actor: Any, grace: float = 0.0) -> None:  # noqa: ANN401
        await asyncio.wait_for(actor.stop_all.remote(grace), ANSWER_SECONDS)
        while True:
            answer = await asyncio.wait_for(actor.poll.remote(1 << 60, {}, 0.0), ANSWER_SECONDS)
            if not answer["alive"]:
                return
            await asyncio.sleep(0.05)

    async def _kill(self, actor: Any) -> None:  # noqa: ANN401
        """Kills the actor, and waits until a call to it fails: only then is it dead."""
        while True:
            await self._driver.in_thread(lambda: self._driver.agents.kill(actor))
            try:
                await asyncio.wait_for(actor.describe.remote(), ANSWER_SECONDS)
            except Exception as problem:
                if _is_dead(problem):
                    return
            await asyncio.sleep(0.05)


def _is_dead(problem: Exception) -> bool:
    from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError

    return isinstance(problem, ActorDiedError | ActorUnschedulableError) and not isinstance(
        problem, ActorUnavailableError
    )
