"""RayLauncher: the controller's side. One thread, which starts the bridge and talks to it.

The root holds `nodes.json` (nodes whose slots were told and not lost), the mirror of all
launches, and `bridge.log`.

A head that is gone takes every lease with it: when one has run out, all nodes are lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.exec import Exit
from ones.exec.records import parse_exit
from ones.launchers.api import Launch, Listener, Slot, SlotLost, SlotSuspect, SlotUp
from ones.launchers.exits import fenced, not_started
from ones.launchers.loop import wait_for
from ones.launchers.nodes_file import KnownNode, NodesFile
from ones.launchers.ray.driver import Driver
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.options import MARGIN_SECONDS, RayOptions
from ones.launchers.threaded import TURN_SECONDS, Threaded

OPEN_SECONDS = 50.0  # less than whoever starts the service waits for it
CLOSE_SECONDS = 40.0
LOG = "bridge.log"

log = logging.getLogger(__name__)


class RayLauncher(Threaded):
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
        self._mirror = Mirror(root)
        super().__init__(self._mirror)
        self._root, self._options, self._controller = root, options, controller
        self._waits = waits
        self._lock = threading.Lock()  # of the nodes: their slots are read by others
        self._nodes: dict[str, KnownNode] = {}
        self._nodes_file = NodesFile(root)
        self._driver = Driver(root / LOG, self._hello)
        self.unfit: dict[str, str] = {}  # nodes with slots that cannot be used, and why
        self._settled = threading.Event()
        self._failure = ""
        self._gone_since: float | None = None  # nobody listens where the head was
        self._closing = False
        self._close_request: int | None = None
        self._give_up_at = 0.0

    # what callers see

    def may_have_workers(self) -> bool:
        """Or managers. As the files say, before it is opened."""
        return bool(self._nodes_file.read()) or any(
            kept.process.alive for kept in self._mirror.all()
        )

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
            self._ledger.find(kept.process, kept.node)
        self._nodes = self._nodes_file.read()
        self._begin(listener)
        if not self._settled.wait(OPEN_SECONDS):
            self._failure = (
                f"Ray at {self._options.address}: no answer in {OPEN_SECONDS:g} s"
                " (does it ask for TLS, or for a token?)"
            )
        if self._failure and not self._nodes:
            self.close(kill=False)
            raise WorldError(f"{self._failure}; see {self._root / LOG}")

    def slots(self) -> list[Slot]:
        with self._lock:
            return [slot for name in sorted(self._nodes) for slot in self._nodes[name].slots]

    # the thread

    def _turn(self) -> None:
        self._driver.start_if_due()
        wait_for([self._todo], self._driver.lines, self._patience())
        for message in self._driver.receive():
            try:
                self._hear(message)
            except Exception:
                about = {"launch": str(message.get("id", "")), "node": str(message.get("node", ""))}
                log.exception("invalid message from the bridge", extra=about)
        if self._driver.has_died:
            self._bridge_died()
        self._todo.do_all()
        self._look_at_head()

    def _end(self) -> None:
        self._driver.end()

    def _hello(self) -> dict[str, Any]:
        options = asdict(replace(self._options, controller=self._controller()))
        nodes = {name: node.mark for name, node in self._nodes.items()}
        return {"options": options, "root": str(self._root), "nodes": nodes}

    def _bridge_died(self) -> None:
        self._driver.end()
        if not self._closing or self._close_request is not None:
            self._driver.start_again()
        for node in self._nodes:
            self._suspect(node, "the bridge to Ray is being started again")

    def _patience(self) -> float:
        give_up_at = self._give_up_at if self._closing else None
        times = [t for t in (self._driver.start_at, give_up_at, self._all_lost_at()) if t]
        return min(TURN_SECONDS, max(0.0, min(times) - time.monotonic())) if times else TURN_SECONDS

    def _all_lost_at(self) -> float | None:
        if self._gone_since is None or not self._nodes:
            return None
        return self._gone_since + self._options.lease_seconds + MARGIN_SECONDS

    def _look_at_head(self) -> None:
        """Who renewed a lease last did so before we found that the head was gone."""
        at = self._all_lost_at()
        if at is not None and time.monotonic() >= at:
            for node in list(self._nodes):
                self._lost(node, "the head of the Ray cluster is gone")

    def _is_done(self) -> bool:
        if not self._closing:
            return False
        number = self._close_request
        waiting = number is not None and self._driver.is_asked(number)
        return not waiting or time.monotonic() > self._give_up_at

    def _close(self, kill: bool) -> None:
        self._closing = True
        self._give_up_at = time.monotonic() + CLOSE_SECONDS
        if kill and self._driver.is_there and not self.is_gone:
            self._close_request = self._driver.ask({"do": "close"})

    # requests

    def _nodes_by_slot(self) -> dict[str, str]:
        return {slot.id: name for name, node in self._nodes.items() for slot in node.slots}

    def _launch(self, launch: Launch) -> None:
        nodes = self._nodes_by_slot()
        missing = [slot for slot in launch.slots if slot not in nodes]
        if missing:
            self._exited(launch.id, not_started(f"slot {missing[0]} is not here"))
            return
        node = nodes[launch.slots[0]]
        self._ledger.place(launch.id, node)
        try:
            self._mirror.add(launch, node)
        except OSError as problem:  # a full disk
            self._exited(launch.id, not_started((problem.strerror or str(problem)).lower()))
            return
        self._driver.ask({"do": "launch", "node": node, "launch": asdict(launch)})

    def _prepare(self, launch: Launch) -> None:
        node = self._nodes_by_slot().get(launch.slots[0])
        if node is not None:
            self._driver.ask({"do": "prepare", "node": node, "launch": asdict(launch)})

    def _stop(self, id: str, grace: float) -> None:
        node = self._ledger.node_of(id)
        if node and self._ledger.living(id) is not None:
            self._driver.ask({"do": "stop", "node": node, "id": id, "grace": grace})

    def _forget(self, job: str) -> None:
        nodes = self._ledger.nodes_of(job) & set(self._nodes)
        self._ledger.forget(job)
        for node in nodes:
            self._driver.ask({"do": "forget", "node": node, "job": job})
        self._mirror.end_job(job)

    # what the bridge says

    def _hear(self, message: dict[str, Any]) -> None:
        match message.get("event"):
            case None:
                request = self._driver.answered(message["n"])
                if "left" in message:
                    self._closed(message["left"])
                if request is not None and "error" in message and request["do"] == "launch":
                    self._exited(request["launch"]["id"], fenced(message["error"]))
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
                self._ledger.started(message["id"], message["pid"])
            case "exited":
                self._exited(message["id"], parse_exit(message["exit"]))

    def _failed(self, cause: str, *, is_gone: bool) -> None:
        self._failure = cause
        if not is_gone:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = time.monotonic()
        if is_gone or not self._waits or not self._nodes or self._ledger.all():
            self._settled.set()
        if self._close_request is not None:  # nobody can be asked: their lease ends the workers
            self._driver.answered(self._close_request)

    def _closed(self, left: list[str]) -> None:
        """Nothing runs any more, but perhaps on these."""
        with self._lock:
            self._nodes = {name: node for name, node in self._nodes.items() if name in left}
        self._nodes_file.write(self._nodes)

    def _node(self, message: dict[str, Any]) -> None:
        name, launches = message["node"], message["launches"]
        self.unfit.pop(name, None)
        node = KnownNode(message["ray"], [Slot.of(plain) for plain in message["slots"]])
        with self._lock:
            self._nodes[name] = node
        self._nodes_file.write(self._nodes)
        for id, pid in launches.items():
            if pid is not None:
                self._ledger.started(id, pid)
        asked = self._driver.launches_asked()
        for process in self._ledger.living_on(name):
            if process.id not in launches and process.id not in asked:
                self._exited(process.id, not_started("its node does not know of it"))
        for slot in node.slots:
            self._tell(SlotUp(slot))

    def _suspect(self, name: str, cause: str) -> None:
        if name in self._nodes:
            for slot in self._nodes[name].slots:
                self._tell(SlotSuspect(slot.id, cause))

    def _lost(self, name: str, cause: str) -> None:
        with self._lock:
            node = self._nodes.pop(name, None)
        self._nodes_file.write(self._nodes)
        for slot in node.slots if node is not None else ():
            self._tell(SlotLost(slot.id, cause))
        self._driver.drop(name)
        record = fenced(f"node {name}: {cause}")
        for process in self._ledger.living_on(name):
            self._exited(process.id, record)

    def _exited(self, id: str, exit: Exit) -> None:
        """On disk before anybody is told."""
        process, node = self._ledger.living(id), self._ledger.node_of(id)
        if process is not None and node:
            self._mirror.exited(process.job, node, id, exit)
        self._ledger.exited(id, exit)
