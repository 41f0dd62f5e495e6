"""The nodes that have slots of ours, whether they answer or not, and what time does to them.

A node that is silent is in doubt; silent for longer it is given up, and told so through the shared
directory; when its lease has run out after that, nothing runs there any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ones.exec.line_protocol import Connection
from ones.launchers.api import Listener, Slot, SlotEnding, SlotLost, SlotSuspect, SlotUp
from ones.launchers.nodes_file import KnownNode, NodesFile
from ones.launchers.slurm.shared import LOST, Shared, Timing


@dataclass(slots=True)
class Node:
    name: str
    slots: list[Slot]
    allocation: str = ""
    line: Connection | None = None
    heard: float = field(default_factory=time.monotonic)
    is_suspect: bool = False
    is_ending: bool = False
    free_at: float | None = None  # given up: when nothing can run there any more

    def say(self, message: dict[str, Any]) -> None:
        """If somebody is on the line."""
        if self.line is not None:
            self.line.send(message)

    def hang_up(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


class Nodes:
    """`tell` hears what becomes of their slots. Anybody may ask for the slots; the rest is for the
    launcher's own thread."""

    def __init__(self, shared: Shared, timing: Timing, tell: Listener) -> None:
        self._shared, self._timing, self._tell = shared, timing, tell
        self._file = NodesFile(shared.root)
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._pinged = 0.0

    def recall(self, names: Iterable[str]) -> None:
        """Nodes of an earlier controller, and these: they are waited for, and given up if they do
        not call."""
        for name, known in self._file.read().items():
            self._nodes[name] = Node(name, list(known.slots), known.mark)
        for name in names:
            self._nodes.setdefault(name, Node(name, []))

    def slots(self) -> list[Slot]:
        with self._lock:
            return [slot for name in sorted(self._nodes) for slot in self._nodes[name].slots]

    def on_the_line(self) -> set[str]:
        with self._lock:
            return {node.name for node in self._nodes.values() if node.line is not None}

    def all(self) -> list[Node]:
        return list(self._nodes.values())

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def by_slot(self) -> dict[str, Node]:
        return {slot.id: node for node in self._nodes.values() for slot in node.slots}

    @property
    def lines(self) -> list[Connection]:
        return [node.line for node in self._nodes.values() if node.line is not None]

    # what becomes of them

    def add(self, node: Node) -> None:
        """In place of what was known by its name."""
        with self._lock:
            self._nodes[node.name] = node
        self._write()
        for slot in node.slots:
            self._tell(SlotUp(slot))

    def heard(self, node: Node) -> None:
        node.heard = time.monotonic()
        if node.is_suspect:
            node.is_suspect = False
            for slot in node.slots:
                self._tell(SlotUp(slot))

    def ending(self, node: Node) -> None:
        if not node.is_ending:
            node.is_ending = True
            for slot in node.slots:
                self._tell(SlotEnding(slot.id, f"allocation {node.allocation} ends"))

    def lose(self, node: Node, cause: str) -> None:
        with self._lock:
            if self._nodes.get(node.name) is node:
                del self._nodes[node.name]
        self._write()
        for slot in node.slots:
            self._tell(SlotLost(slot.id, cause))

    def _write(self) -> None:
        known = {n.name: KnownNode(n.allocation, n.slots) for n in self._nodes.values() if n.slots}
        self._file.write(known)

    # time

    def look_at_clock(self, now: float) -> list[Node]:
        """Those on which nothing can run any more since they were given up."""
        if now - self._pinged < self._timing.ping:
            return []
        self._pinged = now
        free = []
        for node in self.all():
            if node.free_at is None:
                self._judge(node, now - node.heard)
            elif now >= node.free_at:
                free.append(node)
        return free

    def _judge(self, node: Node, silent: float) -> None:
        node.say({"do": "ping"})
        if silent > self._timing.suspect and not node.is_suspect:
            node.is_suspect = True
            for slot in node.slots:
                self._tell(SlotSuspect(slot.id, f"silent for {silent:.0f} s"))
        if silent > self._timing.condemn:
            self._condemn(node)

    def _condemn(self, node: Node) -> None:
        """From the moment that this is written its agent renews no lease."""
        try:
            self._shared.say(node.name, LOST)
        except OSError:
            return  # we are the ones who are cut off: nobody is given up
        node.free_at = time.monotonic() + self._timing.lease + self._timing.margin
        node.hang_up()
