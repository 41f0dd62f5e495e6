"""What the launchers of Ray and Slurm share on the controller's side: nodes, requests, events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container
from dataclasses import asdict
from typing import Any, Generic

from ones.exec.records import parse_exit
from ones.launchers.api import Launch, Slot
from ones.launchers.exits import not_started
from ones.launchers.node_table import Node, NodeTable
from ones.launchers.run_dirs import RunDirs
from ones.launchers.threaded_launcher import ThreadedLauncher


class RemoteLauncher(ThreadedLauncher, Generic[Node]):
    """Subclasses set `_nodes`. Messages are described in `ones.launchers.node_agent`."""

    _nodes: NodeTable[Node]

    def __init__(self, run_dirs: RunDirs) -> None:
        super().__init__(run_dirs)
        self.unfit: dict[str, str] = {}  # nodes with slots that cannot be used, and why

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
        """Why nothing can be launched there; empty: it can."""
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
            self._exited(message["id"], parse_exit(message["exit"]))

    def _fail_unknown(self, node: str, known: Container[str]) -> None:
        """End launches on the node that its agent does not know."""
        for process in self._launches.living_on(node):
            if process.id not in known:
                self._exited(process.id, not_started("its node does not know of it"))

    def _restore_launches(self) -> set[str]:
        """Read launches of an earlier controller. Returns the nodes with launches that live."""
        found = list(self._dirs.all())
        for record in found:
            self._launches.restore(record.process, record.node)
        return {record.node for record in found if record.process.alive}
