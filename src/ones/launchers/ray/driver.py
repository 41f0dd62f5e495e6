"""The Ray driver: `python -m ones.launchers.ray.driver FD`, between a launcher and the agents.

It has no state of its own: a new driver finds the agents by name, and the launches in their answers
and in the mirror on disk. It reads and writes JSON lines on the socket with descriptor FD, and ends
when the socket is closed. Requests are those of `ones.launchers.node_agent`, with number and node:

    {"do": "hello", "options": {...}, "root": "...", "nodes": {"n-1a2b3c": "RAY ID"}}
    {"n": 1, "do": "launch", "node": "n-1a2b3c", "launch": {...}}
    {"n": 5, "do": "close"}         end all workers and agents

Answers and events, beside `started` and `exited`:

    {"n": 1}                        done
    {"n": 5, "left": ["n-1a2b3c"]}  closed, except these nodes: their licence is revoked
    {"event": "node", "node": ..., "ray": ..., "slots": [...], "launches": {"ID": PID}}
    {"event": "settled"}            all nodes that were there at the start have been reported
    {"event": "suspect", "node": ..., "cause": ...}, {"event": "lost", ...}
    {"event": "unfit", "node": ..., "cause": ...}       the node has slots and cannot be used
    {"event": "failed", "cause": ..., "gone": false}    no connection to Ray; `gone`: the head's
                                                        port refuses connections
"""

from __future__ import annotations

import asyncio
import json
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
from ones.launchers.probe import Probe, reason_of, write_probe
from ones.launchers.ray import actors
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.node_monitor import NodeMonitor
from ones.launchers.ray.settings import RayOptions

LOOK_SECONDS = 1.0
SETTLE_SECONDS = 30.0
#: the driver ends itself after this silence of the head: Ray would kill it soon
HEAD_SECONDS = 10.0
CLOSE_SECONDS = 20.0
STUCK_SECONDS = HEAD_SECONDS + 5.0
#: for a first connection to the head; Ray itself would try for much longer
REACH_SECONDS = 5.0

log = logging.getLogger("ones.launchers.ray.driver")


class RayDriver:
    def __init__(self, connection: Connection, hello: dict[str, Any]) -> None:
        self._connection = connection
        self.options = RayOptions(**hello["options"])
        self.mirror = Mirror(Path(hello["root"]))
        self.agents = actors.NodeAgents(self.options)
        self._monitors: dict[str, NodeMonitor] = {}
        self._earlier: dict[str, str] = dict(hello["nodes"])
        self._known = set(self._earlier)  # nodes that the launcher knows and that are not lost
        self.loop = asyncio.get_running_loop()
        self.probe: Probe | None = None
        self._beat = time.monotonic()

    async def run(self) -> None:
        if self.options.shared:
            self.probe = await self.in_thread(lambda: write_probe(self.options.shared))
        self.loop.add_reader(self._connection.fileno(), self._receive)
        began = time.monotonic()
        settled = False
        threading.Thread(target=self._end_if_stuck, daemon=True).start()
        while True:
            self._beat = time.monotonic()
            await self._check_nodes()
            if not settled:
                waiting = any(not monitor.is_reported for monitor in self._monitors.values())
                if not waiting or time.monotonic() > began + SETTLE_SECONDS:
                    settled = True
                    self.send({"event": "settled"})
            await asyncio.sleep(LOOK_SECONDS if settled else 0.05)

    def _end_if_stuck(self) -> None:
        """Ends the driver if Ray blocks: some calls never return after the local raylet died."""
        while time.monotonic() < self._beat + STUCK_SECONDS:
            time.sleep(1.0)
        log.error("stuck in Ray, driver ends", extra={"seconds": STUCK_SECONDS})
        os._exit(5)

    async def in_thread(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Runs a call that may never return, in a daemon thread, for at most HEAD_SECONDS."""
        future: asyncio.Future[Any] = self.loop.create_future()

        def settle(result: Any, problem: BaseException | None) -> None:  # noqa: ANN401
            if not future.done():
                if problem is None:
                    future.set_result(result)
                else:
                    future.set_exception(problem)

        def run() -> None:
            result, problem = None, None
            try:
                result = work()
            except BaseException as caught:
                problem = caught
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(settle, result, problem)

        threading.Thread(target=run, daemon=True).start()
        return await asyncio.wait_for(future, HEAD_SECONDS)

    # nodes

    async def _check_nodes(self) -> None:
        try:
            nodes = await self.in_thread(actors.alive_nodes)
        except Exception as problem:
            log.error("head does not answer, driver ends", extra={"reason": repr(problem)})  # noqa: TRY400
            os._exit(3)
        for name, node in nodes.items():
            if (
                node.resources.get(self.options.slot_resource, 0) >= 1
                and name not in self._monitors
            ):
                self._add(NodeMonitor(self, name, node.id, node, is_known=name in self._known))
        for name, id in self._earlier.items():
            if name not in self._monitors:
                self._add(NodeMonitor(self, name, id, None, is_known=True))
        self._earlier = {}
        for name, monitor in list(self._monitors.items()):
            monitor.is_listed = name in nodes
            if monitor.is_over:
                del self._monitors[name]
                self._known.discard(name)

    def _add(self, monitor: NodeMonitor) -> None:
        self._monitors[monitor.name] = monitor
        monitor.begin()

    def check_task(self, task: asyncio.Task[None]) -> None:
        """Ends the driver if a task has failed: the next driver starts from the current state."""
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("task failed, driver ends", exc_info=problem)
            os._exit(4)

    # the launcher

    def send(self, message: dict[str, Any]) -> None:
        self._connection.send(message)
        if self._connection.wants_to_write:
            self.loop.add_writer(self._connection.fileno(), self._flush)

    def _flush(self) -> None:
        self._connection.flush()
        if not self._connection.wants_to_write:
            self.loop.remove_writer(self._connection.fileno())

    def _receive(self) -> None:
        for request in self._connection.receive():
            self._handle(request)
        if self._connection.closed:
            os._exit(0)  # the launcher is gone

    def _handle(self, request: dict[str, Any]) -> None:
        if request["do"] == "close":
            self.loop.create_task(self._close(request["n"]))
            return
        monitor = self._monitors.get(request["node"])
        if monitor is None:
            self.send({"n": request["n"], "error": f"node {request['node']} is not in the cluster"})
        else:
            monitor.request(request)

    async def _close(self, number: int) -> None:
        monitors = list(self._monitors.values())
        ends = [self.loop.create_task(monitor.end()) for monitor in monitors]
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_SECONDS)
        left = []
        for monitor, end in zip(monitors, ends, strict=True):
            if not end.done() or end.exception() is not None:
                why = repr(end.exception()) if end.done() else f"not in {CLOSE_SECONDS:g} s"
                log.warning("agent did not end", extra={"node": monitor.name, "reason": why})
                left.append(monitor.name)
        for name in left:  # their workers end when the lease expires
            with suppress(Exception):
                await self.in_thread(partial(self.agents.revoke, name))
        self.send({"n": number, "left": left})
        while self._connection.wants_to_write:
            await asyncio.sleep(0.01)


def main() -> int:
    log_to_stderr()  # the launcher redirects it to ray-driver.log
    connection = Connection(socket.socket(fileno=int(sys.argv[1])), raw=True)
    hello = _first_message(connection)
    if hello is None:
        return 0
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
        connection.send({"event": "failed", "cause": cause, "gone": is_gone})
        log.error("no connection to Ray", extra={"reason": cause})
        return 1
    asyncio.run(_serve(connection, hello))
    return 0


def _first_message(connection: Connection) -> dict[str, Any] | None:
    """Reads one message, byte by byte: later lines are for the event loop. None: closed."""
    connection.sock.setblocking(True)
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.sock.recv(1)
        if not byte:
            return None
        line += byte
    connection.sock.setblocking(False)
    message: dict[str, Any] = json.loads(line)
    return message


def out_of_reach(address: str) -> tuple[str, bool]:
    """Why the head cannot be reached (empty: it can), and whether its port refused to connect."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except (OSError, ValueError) as problem:
        return reason_of(problem), isinstance(problem, ConnectionRefusedError)
    return "", False


def _end_with(parent: int) -> None:
    """Ends the driver with its parent. Needed while Ray connects and the socket is not read."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


async def _serve(connection: Connection, hello: dict[str, Any]) -> None:
    await RayDriver(connection, hello).run()


if __name__ == "__main__":
    sys.exit(main())
