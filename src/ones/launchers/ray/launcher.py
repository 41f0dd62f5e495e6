"""RayLauncher: the controller's side. One thread, which starts the bridge and talks to it.

The root holds `nodes.json` (nodes whose slots were told and not lost), the mirror of all
launches, and `bridge.log`.

A head that is gone takes every lease with it: when one has run out, all nodes are lost.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.exec import Chunk, Exit
from ones.exec.lines import Connection
from ones.launchers.api import (
    Exited,
    Launch,
    Listener,
    Process,
    Slot,
    SlotLost,
    SlotSuspect,
    SlotUp,
    Started,
)
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.options import MARGIN_SECONDS, RayOptions

OPEN_SECONDS = 50.0  # less than whoever starts the service waits for it
CLOSE_SECONDS = 40.0
AGAIN_SECONDS = 1.0  # between two starts of the bridge


class RayLauncher:
    """`controller`: the URL that workers will call, once it is known; each node tries it. `waits`
    for a cluster that is not there, for some time, where nodes of it are known."""

    def __init__(
        self,
        root: Path,
        options: RayOptions,
        controller: Callable[[], str] = str,
        *,
        waits: bool = True,
    ) -> None:
        self._root, self._options, self._controller = root, options, controller
        self._waits = waits
        self._mirror = Mirror(root)
        self._lock = threading.Lock()  # of the two that others read
        self._processes: dict[str, Process] = {}
        self._slots: dict[str, list[Slot]] = {}  # by node
        self._node_of: dict[str, str] = {}  # launch -> node
        self._ray_ids: dict[str, str] = {}
        self.unfit: dict[str, str] = {}  # nodes with slots that cannot be used, and why
        self._listener: Listener = lambda event: None
        self._todo: deque[Callable[[], None]] = deque()
        self._requests: dict[int, dict[str, Any]] = {}  # without an answer
        self._number = 0
        self._line: Connection | None = None
        self._bridge: subprocess.Popen[bytes] | None = None
        self._start_at: float | None = 0.0
        self._settled = threading.Event()
        self._failure = ""
        self._gone_since: float | None = None  # nobody listens where the head was
        self._closing = False
        self._close_request: int | None = None
        self._give_up_at = 0.0
        self._wake_end, self._wake = socket.socketpair()
        for end in (self._wake_end, self._wake):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="ones-launcher", daemon=True)

    # what callers see

    def may_have_workers(self) -> bool:
        """Or managers. As the files say, before it is opened."""
        self._read_nodes()
        return bool(self._slots) or any(kept.process.alive for kept in self._mirror.all())

    @property
    def failure(self) -> str:
        """Why Ray cannot be reached, when it was tried last; empty: it can."""
        return self._failure

    @property
    def is_gone(self) -> bool:
        """Nobody listens where its head was."""
        return self._gone_since is not None

    def open(self, listener: Listener) -> None:
        self._mirror.make()
        for kept in self._mirror.all():
            self._processes[kept.process.id] = kept.process
            self._node_of[kept.process.id] = kept.node
        self._read_nodes()
        self._listener = listener
        self._thread.start()
        if not self._settled.wait(OPEN_SECONDS):
            self._failure = (
                f"Ray at {self._options.address}: no answer in {OPEN_SECONDS:g} s"
                " (does it ask for TLS, or for a token?)"
            )
        if self._failure and not self._slots:
            self.close(kill=False)
            raise WorldError(f"{self._failure}; see {self._root / 'bridge.log'}")

    def slots(self) -> list[Slot]:
        with self._lock:
            return [slot for node in sorted(self._slots) for slot in self._slots[node]]

    def launch(self, launch: Launch) -> None:
        with self._lock:
            if launch.id in self._processes:
                return
            self._processes[launch.id] = Process(id=launch.id, job=launch.job, slots=launch.slots)
        self._later(lambda: self._launch(launch))

    def prepare(self, launch: Launch) -> None:
        self._later(lambda: self._prepare(launch))

    def stop(self, id: str, grace_seconds: float) -> None:
        self._later(lambda: self._stop(id, grace_seconds))

    def running(self) -> dict[str, Process]:
        with self._lock:
            return dict(self._processes)

    def history(self, job: str) -> list[Process]:
        return self._mirror.history(job)

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return self._mirror.read(job, id, offset, limit)

    def forget(self, job: str) -> None:
        self._later(lambda: self._forget(job))

    def close(self, *, kill: bool) -> None:
        self._later(lambda: self._close(kill))
        if self._thread.is_alive():
            self._thread.join()
        self._wake.close()  # for one that was never opened; else the thread has done it
        self._wake_end.close()

    # the thread

    def _later(self, what: Callable[[], None]) -> None:
        self._todo.append(what)
        with suppress(BlockingIOError, OSError):
            self._wake.send(b"x")

    def _run(self) -> None:
        while not self._is_done():
            if self._start_at is not None and time.monotonic() >= self._start_at:
                self._start_bridge()
            with selectors.DefaultSelector() as selector:
                selector.register(self._wake_end, selectors.EVENT_READ)
                if self._line is not None:
                    events = selectors.EVENT_READ
                    if self._line.wants_to_write:
                        events |= selectors.EVENT_WRITE
                    selector.register(self._line, events)
                selector.select(self._patience())
            with suppress(BlockingIOError):
                self._wake_end.recv(4096)
            if self._line is not None:
                self._line.flush()
                for message in self._line.receive():
                    self._hear(message)
                if self._line.closed:
                    self._bridge_died()
            while self._todo:
                self._todo.popleft()()
            self._look_at_head()
        self._end_bridge()
        self._wake.close()
        self._wake_end.close()

    def _patience(self) -> float | None:
        give_up_at = self._give_up_at if self._closing else None
        times = [t for t in (self._start_at, give_up_at, self._all_lost_at()) if t]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _all_lost_at(self) -> float | None:
        if self._gone_since is None or not self._slots:
            return None
        return self._gone_since + self._options.lease_seconds + MARGIN_SECONDS

    def _look_at_head(self) -> None:
        """Who renewed a lease last did so before we found that the head was gone."""
        at = self._all_lost_at()
        if at is not None and time.monotonic() >= at:
            for node in list(self._slots):
                self._lost(node, "the head of the Ray cluster is gone")

    def _is_done(self) -> bool:
        if not self._closing:
            return False
        waiting = self._close_request is not None and self._close_request in self._requests
        return not waiting or time.monotonic() > self._give_up_at

    def _close(self, kill: bool) -> None:
        self._closing = True
        self._give_up_at = time.monotonic() + CLOSE_SECONDS
        is_there = self._line is not None or self._start_at is not None
        if kill and is_there and not self.is_gone:
            self._close_request = self._ask({"do": "close"})

    # the bridge

    def _start_bridge(self) -> None:
        self._start_at = None
        ours, its = socket.socketpair()
        with (self._root / "bridge.log").open("ab") as log:
            self._bridge = subprocess.Popen(
                [sys.executable, "-m", "ones.launchers.ray.bridge", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[its.fileno()],
            )
        its.close()
        self._line = Connection(ours)
        nodes = dict(self._ray_ids)
        options = asdict(replace(self._options, controller=self._controller()))
        hello = {"options": options, "root": str(self._root), "nodes": nodes}
        self._line.send({"do": "hello", **hello})
        for number, request in self._requests.items():
            self._line.send({"n": number, **request})

    def _bridge_died(self) -> None:
        self._end_bridge()
        if not self._closing or self._close_request is not None:
            self._start_at = time.monotonic() + AGAIN_SECONDS
        for node in self._slots:
            self._suspect(node, "the bridge to Ray is being started again")

    def _end_bridge(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._bridge is not None:
            try:
                self._bridge.wait(5.0)
            except subprocess.TimeoutExpired:
                self._bridge.kill()
                self._bridge.wait()
            self._bridge = None

    def _ask(self, request: dict[str, Any]) -> int:
        self._number += 1
        self._requests[self._number] = request
        if self._line is not None:
            self._line.send({"n": self._number, **request})
        return self._number

    # requests

    def _launch(self, launch: Launch) -> None:
        nodes = {slot.id: node for node, slots in self._slots.items() for slot in slots}
        missing = [id for id in launch.slots if id not in nodes]
        if missing:
            self._exited(launch.id, _not_started(f"slot {missing[0]} is not here"))
            return
        node = nodes[launch.slots[0]]
        self._node_of[launch.id] = node
        try:
            self._mirror.add(launch, node)
        except OSError as problem:  # a full disk
            self._exited(launch.id, _not_started((problem.strerror or str(problem)).lower()))
            return
        plain = asdict(launch)
        self._ask({"do": "launch", "node": node, "launch": plain})

    def _prepare(self, launch: Launch) -> None:
        for node, slots in self._slots.items():
            if launch.slots[0] in {slot.id for slot in slots}:
                self._ask({"do": "prepare", "node": node, "launch": asdict(launch)})

    def _stop(self, id: str, grace: float) -> None:
        with self._lock:
            process = self._processes.get(id)
        if process is not None and process.alive and id in self._node_of:
            self._ask({"do": "stop", "node": self._node_of[id], "id": id, "grace": grace})

    def _forget(self, job: str) -> None:
        with self._lock:
            ids = [p.id for p in self._processes.values() if p.job == job]
            for id in ids:
                del self._processes[id]
        for node in {self._node_of.pop(id) for id in ids if id in self._node_of} & set(self._slots):
            self._ask({"do": "forget", "node": node, "job": job})
        self._mirror.end_job(job)

    # what the bridge says

    def _hear(self, message: dict[str, Any]) -> None:
        match message.get("event"):
            case None:
                request = self._requests.pop(message["n"], None)
                if "left" in message:
                    self._closed(message["left"])
                if request is not None and "error" in message and request["do"] == "launch":
                    record = replace(_not_started(message["error"]), cause="fenced")
                    self._exited(request["launch"]["id"], record)
            case "node":
                self._node(message)
            case "settled":
                self._failure, self._gone_since = "", None
                self._settled.set()
            case "failed":
                self._failed(message["cause"], is_gone=message["gone"])
            case "suspect":
                self._suspect(message["node"], message["cause"])
            case "lost":
                self._lost(message["node"], message["cause"])
            case "unfit":
                self.unfit[message["node"]] = message["cause"]
            case "started":
                self._started(message["id"], message["pid"])
            case "exited":
                self._exited(message["id"], Exit(**message["exit"]))

    def _failed(self, cause: str, *, is_gone: bool) -> None:
        self._failure = cause
        if not is_gone:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = time.monotonic()
        if is_gone or not self._waits or not self._slots or self._processes:
            self._settled.set()
        if self._close_request is not None:  # nobody can be asked: their lease ends the workers
            self._requests.pop(self._close_request, None)

    def _closed(self, left: list[str]) -> None:
        """Nothing runs any more, but perhaps on these."""
        with self._lock:
            self._slots = {node: slots for node, slots in self._slots.items() if node in left}
        self._write_nodes()

    def _node(self, message: dict[str, Any]) -> None:
        node = message["node"]
        self.unfit.pop(node, None)
        slots = [
            Slot(**{**plain, "used_by": tuple(plain["used_by"])}) for plain in message["slots"]
        ]
        with self._lock:
            self._slots[node] = slots
        self._ray_ids[node] = message["ray"]
        self._write_nodes()
        for id, pid in message["launches"].items():
            if pid is not None:
                self._started(id, pid)
        asked = {r["launch"]["id"] for r in self._requests.values() if r["do"] == "launch"}
        for id in [id for id, where in self._node_of.items() if where == node]:
            if id not in message["launches"] and id not in asked:
                self._exited(id, _not_started("its node does not know of it"))
        for slot in slots:
            self._listener(SlotUp(slot))

    def _suspect(self, node: str, cause: str) -> None:
        for slot in self._slots.get(node, ()):
            self._listener(SlotSuspect(slot.id, cause))

    def _lost(self, node: str, cause: str) -> None:
        with self._lock:
            slots = self._slots.pop(node, [])
        self._ray_ids.pop(node, None)
        self._write_nodes()
        for slot in slots:
            self._listener(SlotLost(slot.id, cause))
        for number in [n for n, r in self._requests.items() if r.get("node") == node]:
            del self._requests[number]
        record = Exit(code=None, at=time.time(), cause="fenced", message=f"node {node}: {cause}")
        for id in [id for id, where in self._node_of.items() if where == node]:
            self._exited(id, record)

    def _started(self, id: str, pid: int) -> None:
        with self._lock:
            known = self._processes.get(id)
            if known is None or not known.alive or known.pid == pid:
                return
            self._processes[id] = Process(id=id, job=known.job, slots=known.slots, pid=pid)
        self._listener(Started(id, pid))

    def _exited(self, id: str, exit: Exit) -> None:
        with self._lock:
            known = self._processes.get(id)
            if known is None or not known.alive:
                return
            process = Process(id=id, job=known.job, slots=known.slots, pid=known.pid, exit=exit)
            self._processes[id] = process
        if id in self._node_of:
            self._mirror.exited(process.job, self._node_of[id], id, exit)
        self._listener(Exited(id, exit))

    # what is kept of nodes

    def _read_nodes(self) -> None:
        with suppress(OSError, ValueError):
            for node, (ray, slots) in json.loads((self._root / "nodes.json").read_text()).items():
                self._ray_ids[node] = ray
                self._slots[node] = [
                    Slot(**{**plain, "used_by": tuple(plain["used_by"])}) for plain in slots
                ]

    def _write_nodes(self) -> None:
        found = {
            node: (self._ray_ids[node], [asdict(slot) for slot in slots])
            for node, slots in self._slots.items()
        }
        path = self._root / "nodes.json"
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(found))
        beside.replace(path)


def _not_started(why: str) -> Exit:
    return Exit(code=None, at=time.time(), cause="not-started", message=why)
