"""The Ray driver: `python -m ones.launchers.ray.bridge FD`, between a launcher and the managers.

It keeps nothing: killed and started again it finds the managers by name, and what it has to know
of launches is in their answers and in the mirror on disk. JSON lines over a socket whose number
is given; it ends when that is closed. It hears

    {"do": "hello", "options": {...}, "root": "...", "nodes": {"n-1a2b3c": "RAY ID"}}
    {"n": 1, "do": "launch", "node": "n-1a2b3c", "launch": {...}}
    {"n": 2, "do": "stop", "node": "n-1a2b3c", "id": "...", "grace": 5.0}
    {"n": 3, "do": "forget", "node": "n-1a2b3c", "job": "..."}
    {"n": 4, "do": "prepare", "node": "n-1a2b3c", "launch": {...}}
    {"n": 5, "do": "close"}         end all workers and managers

and says

    {"event": "node", "node": ..., "ray": ..., "slots": [...], "launches": {"ID": PID}}
    {"event": "settled"}            all nodes that were there at the beginning have been told
    {"event": "suspect", "node": ..., "cause": ...}, {"event": "lost", ...}
    {"event": "unfit", "node": ..., "cause": ...}       it has slots and cannot use them
    {"event": "started", "id": ..., "pid": ...}, {"event": "exited", "id": ..., "exit": {...}}
    {"event": "failed", "cause": ..., "gone": false}    no connection to Ray; nobody listens there
    {"n": 1}                        done
    {"n": 5, "left": ["n-1a2b3c"]}  closed, but for these: they have lost their licence
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ones.exec.line_protocol import Connection
from ones.exec.logs import log_to_stderr
from ones.launchers import probe
from ones.launchers.probe import Probe
from ones.launchers.ray import actors
from ones.launchers.ray.link import Link
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.options import RayOptions

LOOK_SECONDS = 1.0
SETTLE_SECONDS = 30.0
#: the head does not answer: Ray would end this process soon, so it ends itself and comes again
HEAD_SECONDS = 10.0
CLOSE_SECONDS = 20.0
STUCK_SECONDS = HEAD_SECONDS + 5.0
#: for a first word with the head; Ray itself would try for much longer
REACH_SECONDS = 5.0

log = logging.getLogger("ones.launchers.ray.bridge")


class Bridge:
    def __init__(self, line: Connection, hello: dict[str, Any]) -> None:
        self._line = line
        self.options = RayOptions(**hello["options"])
        self.mirror = Mirror(Path(hello["root"]))
        self.managers = actors.Managers(self.options)
        self._links: dict[str, Link] = {}
        self._before: dict[str, str] = dict(hello["nodes"])
        self._known = set(self._before)  # by the launcher, and not lost since
        self._unfit: dict[str, float] = {}
        self.loop = asyncio.get_running_loop()
        self.probe: Probe | None = None
        self._closing = False
        self._beat = time.monotonic()

    async def run(self) -> None:
        if self.options.shared:
            self.probe = await self.apart(lambda: probe.place(self.options.shared))
        self.loop.add_reader(self._line.fileno(), self._receive)
        began = time.monotonic()
        settled = False
        threading.Thread(target=self._end_if_stuck, daemon=True).start()
        while True:
            self._beat = time.monotonic()
            await self._look_at_nodes()
            if not settled:
                waiting = any(not link.told for link in self._links.values())
                if not waiting or time.monotonic() > began + SETTLE_SECONDS:
                    settled = True
                    self.say({"event": "settled"})
            await asyncio.sleep(LOOK_SECONDS if settled else 0.05)

    def _end_if_stuck(self) -> None:
        """Ray blocks for ever, in calls that should not, when the raylet of this machine dies."""
        while time.monotonic() < self._beat + STUCK_SECONDS:
            time.sleep(1.0)
        log.error("stuck in Ray, bridge ends", extra={"seconds": STUCK_SECONDS})
        os._exit(5)

    async def apart(self, what: Callable[[], Any], seconds: float = HEAD_SECONDS) -> Any:  # noqa: ANN401
        """Something that blocks. It may never return: so in a thread that nobody waits for."""
        future: asyncio.Future[Any] = self.loop.create_future()

        def settle(result: Any, problem: BaseException | None) -> None:  # noqa: ANN401
            if not future.done():
                if problem is None:
                    future.set_result(result)
                else:
                    future.set_exception(problem)

        def work() -> None:
            result, problem = None, None
            try:
                result = what()
            except BaseException as caught:
                problem = caught
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(settle, result, problem)

        threading.Thread(target=work, daemon=True).start()
        return await asyncio.wait_for(future, seconds)

    # nodes

    async def _look_at_nodes(self) -> None:
        try:
            nodes = await self.apart(actors.alive_nodes)
        except Exception as problem:
            log.error("head does not answer, bridge ends", extra={"reason": repr(problem)})  # noqa: TRY400
            os._exit(3)
        for name, node in nodes.items():
            if node.resources.get(self.options.slots, 0) >= 1 and name not in self._links:
                self._add(Link(self, name, node.id, node, is_known=name in self._known))
        for name, id in self._before.items():
            if name not in self._links:
                self._add(Link(self, name, id, None, is_known=True))
        self._before = {}
        for name, link in list(self._links.items()):
            link.is_there = name in nodes
            if link.is_over:
                del self._links[name]
                self._known.discard(name)

    def _add(self, link: Link) -> None:
        self._links[link.name] = link
        link.begin()

    def look_at(self, task: asyncio.Task[None]) -> None:
        """Nothing of this may fail without a word; whoever starts us again finds all as it is."""
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("task failed, bridge ends", exc_info=problem)
            os._exit(4)

    # the launcher

    def say(self, message: dict[str, Any]) -> None:
        self._line.send(message)
        if self._line.wants_to_write:
            self.loop.add_writer(self._line.fileno(), self._flush)

    def _flush(self) -> None:
        self._line.flush()
        if not self._line.wants_to_write:
            self.loop.remove_writer(self._line.fileno())

    def _receive(self) -> None:
        for request in self._line.receive():
            self._take(request)
        if self._line.closed:
            os._exit(0)  # who started us is gone; nothing of this is needed by anybody

    def _take(self, request: dict[str, Any]) -> None:
        if request["do"] == "close":
            self._closing = True
            self.loop.create_task(self._close(request["n"]))
            return
        link = self._links.get(request["node"])
        if link is None:
            self.say({"n": request["n"], "error": f"node {request['node']} is not here"})
        else:
            link.ask(request)

    async def _close(self, number: int) -> None:
        links = list(self._links.values())
        ends = [self.loop.create_task(link.end()) for link in links]
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        left = []
        for link, end in zip(links, ends, strict=True):
            if not end.done() or end.exception() is not None:
                why = repr(end.exception()) if end.done() else "in time"
                log.warning("manager did not end", extra={"node": link.name, "reason": why})
                left.append(link.name)
        for name in left:  # then the lease ends what runs there
            with suppress(Exception):
                await self.apart(partial(self.managers.revoke, name))
        self.say({"n": number, "left": left})
        while self._line.wants_to_write:
            await asyncio.sleep(0.01)


def main() -> int:
    log_to_stderr()  # which is bridge.log
    line = Connection(socket.socket(fileno=int(sys.argv[1])), raw=True)
    line.sock.setblocking(True)
    first = b""
    while not first.endswith(b"\n"):
        data = line.sock.recv(1)
        if not data:
            return 0
        first += data
    line.sock.setblocking(False)
    import json

    hello = json.loads(first)
    options = RayOptions(**hello["options"])
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    cause, is_gone = out_of_reach(options.address)
    if not cause:
        try:
            actors.connect(options)
        except Exception as problem:
            cause = str(problem).strip().splitlines()[0]
    if cause:
        cause = f"Ray at {options.address}: {cause}"
        line.send({"event": "failed", "cause": cause, "gone": is_gone})
        log.error("no connection to Ray", extra={"reason": cause})
        return 1
    asyncio.run(_serve(line, hello))
    return 0


def out_of_reach(address: str) -> tuple[str, bool]:
    """Why the head cannot be reached, or nothing; and is it certain that there is none?"""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except (OSError, ValueError) as problem:
        return probe.said(problem), isinstance(problem, ConnectionRefusedError)
    return "", False


def _end_with(parent: int) -> None:
    """While Ray connects nobody reads the socket: a dead launcher is noticed all the same."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


async def _serve(line: Connection, hello: dict[str, Any]) -> None:
    await Bridge(line, hello).run()


if __name__ == "__main__":
    sys.exit(main())
