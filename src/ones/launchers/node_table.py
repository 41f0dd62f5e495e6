"""The nodes of a cluster on which the service has slots, in memory and in `nodes.json`.

A restarted controller reads from the file on which nodes workers may still run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ones.launchers.api import Listener, Slot, SlotLost, SlotSuspect, SlotUp


@dataclass(slots=True)
class RemoteNode:
    name: str
    slots: list[Slot]
    source: str = ""  # Slurm: id of its allocation; Ray: Ray's id of the node


Node = TypeVar("Node", bound=RemoteNode)


class NodeTable(Generic[Node]):
    """Calls `notify` for changes of slots.

    Any thread may read the slots; the other methods are for the launcher's own thread.
    """

    def __init__(
        self, root: Path, notify: Listener, make: Callable[[str, list[Slot], str], Node]
    ) -> None:
        self._path, self._notify, self._make = root / "nodes.json", notify, make
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}

    def slots(self) -> list[Slot]:
        with self._lock:
            return [slot for name in sorted(self._nodes) for slot in self._nodes[name].slots]

    def all(self) -> list[Node]:
        return list(self._nodes.values())

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def by_slot(self) -> dict[str, Node]:
        return {slot.id: node for node in self._nodes.values() for slot in node.slots}

    # changes

    def add(self, node: Node) -> None:
        """Adds a node, in place of one with the same name."""
        with self._lock:
            self._nodes[node.name] = node
        self._write()
        for slot in node.slots:
            self._notify(SlotUp(slot))

    def suspect(self, node: Node, cause: str) -> None:
        for slot in node.slots:
            self._notify(SlotSuspect(slot.id, cause))

    def remove(self, node: Node, cause: str) -> None:
        """Removes a node on which no process runs any more."""
        with self._lock:
            if self._nodes.get(node.name) is node:
                del self._nodes[node.name]
        self._write()
        for slot in node.slots:
            self._notify(SlotLost(slot.id, cause))

    def keep_only(self, names: Iterable[str]) -> None:
        """Removes all other nodes without `SlotLost`: the service itself closed them."""
        with self._lock:
            self._nodes = {name: self._nodes[name] for name in names if name in self._nodes}
        self._write()

    # the file

    def restore(self) -> None:
        with self._lock:
            self._nodes = {node.name: node for node in self.stored()}

    def stored(self) -> list[Node]:
        """The nodes in the file; none if it does not exist or is invalid."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return [
                self._make(name, [Slot.of(plain) for plain in slots], source)
                for name, (source, slots) in json.loads(self._path.read_text()).items()
            ]
        return []

    def _write(self) -> None:
        plain = {
            node.name: (node.source, [asdict(slot) for slot in node.slots])
            for node in self._nodes.values()
            if node.slots
        }
        temporary = self._path.with_suffix(".new")
        with suppress(OSError):  # a full disk: the old file stays
            temporary.write_text(json.dumps(plain))
            temporary.replace(self._path)
