"""The bridge's side of one node: its manager made and followed, its trouble judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from ones.launchers.probe import Probe
from ones.launchers.ray.actors import Managers, RayNode, room_on
from ones.launchers.ray.following import Following
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.options import MARGIN_SECONDS, RayOptions

POLL_SECONDS = 5.0
ANSWER_SECONDS = 5.0  # beyond what a poll waits
CREATE_SECONDS = 60.0
ROOM_SECONDS = 5.0
RETRY_SECONDS = 0.3
AGAIN_SECONDS = 10.0  # until a node that was not fit is looked at again


class Bridge(Protocol):
    """What a link needs of the bridge it is part of."""

    options: RayOptions
    managers: Managers
    mirror: Mirror
    probe: Probe | None
    loop: asyncio.AbstractEventLoop

    def say(self, message: dict[str, Any]) -> None: ...

    def look_at(self, task: asyncio.Task[None]) -> None: ...

    async def apart(self, what: Callable[[], Any], seconds: float = ...) -> Any: ...  # noqa: ANN401


class Link:
    """`node` None: it was there when an earlier bridge was, and is not now. `is_known`: the
    launcher knows of it, and of what runs there; else that was given up."""

    def __init__(
        self, bridge: Bridge, name: str, id: str, node: RayNode | None, *, is_known: bool
    ) -> None:
        self._bridge, self.name, self._id, self._node = bridge, name, id, node
        self._is_known = is_known
        self.is_there = node is not None  # Ray says so
        self.told = False
        self.is_over = False
        self._actor: Any = None
        self._following = Following(name, bridge.mirror, bridge.say)
        self._version = 0
        self._trouble_since: float | None = None
        self._cause = ""
        self._revoked_at: float | None = None
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        loop = self._bridge.loop
        self._tasks = [
            loop.create_task(work) for work in (self._follow(), self._serve(), self._watch())
        ]
        for task in self._tasks:
            task.add_done_callback(self._bridge.look_at)

    def ask(self, request: dict[str, Any]) -> None:
        self._requests.put_nowait(request)

    # following

    async def _follow(self) -> None:
        while not self.is_over:
            try:
                if self._actor is None:
                    await self._attach()
                else:
                    await self._poll()
            except Exception as problem:
                self._in_trouble(problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _attach(self) -> None:
        """Find the manager or make one, and see whether the node is fit for work."""
        bridge, managers, node = self._bridge, self._bridge.managers, self._node
        if node is None or not self.is_there:
            raise ConnectionError("it is not part of the cluster any more")
        if self._revoked_at is not None:
            raise ConnectionError("it was cut off for too long")
        actor = await bridge.apart(lambda: managers.find(self.name))
        if actor is not None and not self._is_known:
            await self._clear(actor)  # it may have slept through the end of its lease
        await bridge.apart(lambda: managers.license(self.name))
        if actor is None:
            count = await self._room(node)
            if count < 1:
                self._say_unfit(f"others on the cluster have all of its {bridge.options.slots}")
                return
            actor = await bridge.apart(lambda: managers.make(node, count))
        slots = await asyncio.wait_for(actor.describe.remote(), CREATE_SECONDS)
        trouble = await asyncio.wait_for(
            actor.trouble.remote(bridge.options.controller, bridge.probe), CREATE_SECONDS
        )
        if trouble:
            await self._kill(actor)
            self._say_unfit(trouble)
            return
        answer = await asyncio.wait_for(actor.poll.remote(0, {}, 0.0), ANSWER_SECONDS)
        launches = {id: pid for id, (_, pid, _) in answer["launches"].items()}
        self._actor, self._version = actor, 0
        bridge.say(
            {
                "event": "node",
                "node": self.name,
                "ray": self._id,
                "slots": slots,
                "launches": launches,
            }
        )
        self.told = self._is_known = True
        self._well()

    async def _room(self, node: RayNode) -> int:
        """Ray takes a moment to count what a manager held that has just ended."""
        until = time.monotonic() + ROOM_SECONDS
        while True:
            count: int = await self._bridge.apart(lambda: room_on(node, self._bridge.options))
            if count or time.monotonic() > until:
                return count
            await asyncio.sleep(0.1)

    def _say_unfit(self, cause: str) -> None:
        """Looked at again when it is listed again, after a while."""
        self._bridge.say({"event": "unfit", "node": self.name, "cause": cause})
        self.told = True
        self._bridge.loop.call_later(AGAIN_SECONDS, self._finish)
        self._ending = True
        self._tasks[0].cancel()

    async def _poll(self) -> None:
        have = self._following.have
        wait = 0.0 if self._following.in_a_hurry else POLL_SECONDS
        answer = await asyncio.wait_for(
            self._actor.poll.remote(self._version, have, wait), wait + ANSWER_SECONDS
        )
        if self._revoked_at is not None or not answer["licensed"]:
            self._after_revocation(answer)
        else:
            self._well()
        self._version = answer["version"]
        self._following.hear(answer, have)

    # trouble

    def _well(self) -> None:
        if self._trouble_since is not None:
            self._trouble_since = None
            self._bridge.say({"event": "well", "node": self.name})

    def _in_trouble(self, problem: Exception) -> None:
        """Out of reach is not gone: what runs there may run on, until its lease is over."""
        if self._ending:
            return
        if _is_dead(problem):
            self._actor = None  # made again, where the node is still there
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()
            self._cause = _told(problem)
            self._bridge.say({"event": "suspect", "node": self.name, "cause": self._cause})

    async def _watch(self) -> None:
        """Trouble that lasts: take the licence away, wait for the lease to run out, tell the loss.
        Beside `_follow`, whose calls may take long just then."""
        bridge, lease = self._bridge, self._bridge.options.lease_seconds
        while not self.is_over:
            await asyncio.sleep(RETRY_SECONDS)
            if not self.is_there and not self._ending:
                self._in_trouble(ConnectionError("Ray says that it is dead"))
            if self._trouble_since is None:
                continue
            now = time.monotonic()
            if self._revoked_at is None:
                if not self.is_there or now > self._trouble_since + lease:
                    await bridge.apart(lambda: bridge.managers.revoke(self.name))
                    self._revoked_at = time.monotonic()
            elif now > self._revoked_at + lease + MARGIN_SECONDS:
                self._lost(self._cause)

    def _after_revocation(self, answer: dict[str, Any]) -> None:
        """It answers again, and too late: as soon as nothing runs there, it is a new node."""
        if answer["licensed"]:
            return  # it has not noticed yet
        if answer["alive"] == 0:
            self._lost("it was cut off for too long")

    def _lost(self, cause: str) -> None:
        self._bridge.say({"event": "lost", "node": self.name, "cause": cause})
        self.told = True
        self._finish()

    def _finish(self) -> None:
        self.is_over = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        while not self._requests.empty():
            number = self._requests.get_nowait()["n"]
            self._bridge.say({"n": number, "error": f"node {self.name} is lost"})

    # requests, in their order

    async def _serve(self) -> None:
        while True:
            request = await self._requests.get()
            while not self.is_over:
                try:
                    await self._pass_on(request)
                except Exception:
                    if request["do"] != "prepare":  # which binds nobody to anything
                        await asyncio.sleep(RETRY_SECONDS)  # `_follow` sees it, too, and judges
                        continue
                self._bridge.say({"n": request["n"]})
                break

    async def _pass_on(self, request: dict[str, Any]) -> None:
        actor = self._actor
        if actor is None:
            raise ConnectionError("no manager yet")
        match request["do"]:
            case "launch":
                call = actor.launch.remote(request["launch"])
            case "prepare":
                call = actor.prepare.remote(request["launch"])
            case "stop":
                call = actor.stop.remote(request["id"], request["grace"])
            case "forget":
                call = actor.forget.remote(request["job"])
            case other:
                raise ValueError(f"{other!r} is not a request")
        await asyncio.wait_for(call, ANSWER_SECONDS)

    async def end(self) -> None:
        """All workers, then the manager."""
        self._ending = True
        actor = self._actor
        if actor is None and self._trouble_since is None:
            return  # there was none
        if actor is None:
            raise ConnectionError(self._cause)
        await self._clear(actor, grace=5.0)
        while self._following:  # their last words
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
        """Ray's word for it is not waited for by Ray itself: only a call says that it is dead."""
        while True:
            await self._bridge.apart(lambda: self._bridge.managers.kill(actor))
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


def _told(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__
