"""The nodes of allocations, and the timeouts of nodes that do not answer.

A silent node is suspect. After a longer silence the node is given up, by a file in the shared
directory that its agent reads. When its lease has expired after that, no process runs there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ones.exec.line_protocol import Connection
from ones.launchers.api import Listener, SlotEnding, SlotUp
from ones.launchers.node_table import NodeTable, RemoteNode
from ones.launchers.slurm.settings import Timing
from ones.launchers.slurm.shared_directory import LOST, SharedDirectory


@dataclass(slots=True)
class SlurmNode(RemoteNode):
    connection: Connection | None = None
    last_message_at: float = field(default_factory=time.monotonic)
    is_suspect: bool = False
    is_ending: bool = False
    free_at: float | None = None  # given up: when no process can run there any more

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message if the node's agent is connected."""
        if self.connection is not None:
            self.connection.send(message)

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class SlurmNodes(NodeTable[SlurmNode]):
    def __init__(self, shared: SharedDirectory, timing: Timing, notify: Listener) -> None:
        super().__init__(shared.root, notify, SlurmNode)
        self._shared, self._timing = shared, timing
        self._pinged_at = 0.0

    def restore_with(self, names: Iterable[str]) -> None:
        """Adds the nodes of an earlier controller, and these; given up if they do not register."""
        self.restore()
        for name in names:
            self._nodes.setdefault(name, SlurmNode(name, []))

    def connected(self) -> set[str]:
        with self._lock:
            return {node.name for node in self._nodes.values() if node.connection is not None}

    @property
    def connections(self) -> list[Connection]:
        return [node.connection for node in self._nodes.values() if node.connection is not None]

    def mark_alive(self, node: SlurmNode) -> None:
        """Records that a message of the node has arrived."""
        node.last_message_at = time.monotonic()
        if node.is_suspect:
            node.is_suspect = False
            for slot in node.slots:
                self._notify(SlotUp(slot))

    def ending(self, node: SlurmNode) -> None:
        if not node.is_ending:
            node.is_ending = True
            for slot in node.slots:
                self._notify(SlotEnding(slot.id, f"allocation {node.source} ends"))

    def check_clock(self, now: float) -> list[SlurmNode]:
        """Pings all nodes and gives up silent ones.

        Returns the nodes that were given up and on which no process can run any more.
        """
        if now - self._pinged_at < self._timing.ping:
            return []
        self._pinged_at = now
        free = []
        for node in self.all():
            if node.free_at is None:
                self._check_silence(node, now - node.last_message_at)
            elif now >= node.free_at:
                free.append(node)
        return free

    def _check_silence(self, node: SlurmNode, silent: float) -> None:
        node.send({"do": "ping"})
        if silent > self._timing.suspect and not node.is_suspect:
            node.is_suspect = True
            self.suspect(node, f"silent for {silent:.0f} s")
        if silent > self._timing.condemn:
            self._give_up(node)

    def _give_up(self, node: SlurmNode) -> None:
        """Writes that the node is lost: from then on its agent does not renew the lease."""
        try:
            self._shared.set_node_state(node.name, LOST)
        except OSError:
            return  # the controller itself is cut off: no node is given up
        node.free_at = time.monotonic() + self._timing.lease + self._timing.margin
        node.disconnect()
