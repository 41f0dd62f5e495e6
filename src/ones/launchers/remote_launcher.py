"""Base class of the Ray and Slurm launchers: nodes, requests and events in the controller."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Container
from dataclasses import asdict
from typing import Any, Generic

from ones.exec.logs import LogLimiter
from ones.exec.records import Exit, Launch, not_started, parse_record
from ones.launchers.api import Sampled, Slot
from ones.launchers.node_table import Node, NodeTable
from ones.launchers.run_dirs import RunDirs
from ones.launchers.threaded_launcher import ThreadedLauncher
from ones.wire import CodecError
from ones.wire.samples import samples_of

log = logging.getLogger(__name__)
_refusals = LogLimiter()


class RemoteLauncher(ThreadedLauncher, Generic[Node]):
    """Subclasses set `_nodes`. Messages are described in `ones.launchers.node_agent`."""

    _nodes: NodeTable[Node]

    def __init__(self, run_dirs: RunDirs) -> None:
        super().__init__(run_dirs)
        self.unfit: dict[str, str] = {}  # node that cannot be used -> why

    def slots(self) -> list[Slot]:
        return self._nodes.slots()

    # requests

    def _launch(self, launch: Launch) -> None:
        nodes = self._nodes.by_slot()
        missing = [id for id in launch.slots if id not in nodes]
        if missing:
            self._exited(launch.id, not_started(f"slot {missing[0]} is not here"))
            return
        node = nodes[launch.slots[0]]
        if why := self._refuses(node):
            self._exited(launch.id, not_started(why))
            return
        self._launches.place(launch.id, node.name)
        self._send_launch(node, launch)

    def _prepare(self, launch: Launch) -> None:
        node = self._nodes.by_slot().get(launch.slots[0])
        if node is not None:
            self._send(node, {"do": "prepare", "launch": asdict(launch)})

    def _refuses(self, node: Node) -> str:
        """Why no worker can be launched on the node; empty: it can."""
        return ""

    @abstractmethod
    def _send_launch(self, node: Node, launch: Launch) -> None: ...

    @abstractmethod
    def _send(self, node: Node, request: dict[str, Any]) -> None: ...

    # events

    def _handle_launch_event(self, message: dict[str, Any]) -> None:
        if message["event"] == "started":
            self._launches.started(message["id"], message["pid"])
        else:
            self._exited(message["id"], parse_record(Exit, message["exit"]))

    def _handle_samples(self, node: str, plain: object) -> None:
        """Reports the samples of a node. Those of other nodes' workers are dropped."""
        try:
            samples = samples_of(plain)
        except CodecError as problem:
            if _refusals.suppressed() is not None:
                about = {"node": node, "reason": str(problem)}
                log.warning("invalid samples dropped", extra=about)
            return
        own = {process.id: process.slots for process in self._launches.living_on(node)}
        known = tuple(sample for sample in samples if sample.slot in own.get(sample.launch, ()))
        if known:
            self._notify(Sampled(known))

    def _fail_unknown(self, node: str, known: Container[str]) -> None:
        """Ends launches on the node that its agent does not know."""
        for process in self._launches.living_on(node):
            if process.id not in known:
                self._exited(process.id, not_started(f"node {node} has no such launch"))

    def _restore_launches(self) -> set[str]:
        """Reads launches of an earlier controller. Returns the nodes with living launches."""
        found = list(self._dirs.all())
        for process in found:
            self._launches.restore(process)
        return {process.node for process in found if process.alive}
