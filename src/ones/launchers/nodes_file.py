"""`nodes.json`: nodes whose slots were told and not lost. A controller that comes back knows by it
where something may still run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ones.launchers.api import Slot


@dataclass(frozen=True, slots=True)
class KnownNode:
    mark: str  # of whoever manages it: an allocation, an id of Ray
    slots: Sequence[Slot]


class NodesFile:
    def __init__(self, root: Path) -> None:
        self._path = root / "nodes.json"

    def read(self) -> dict[str, KnownNode]:
        """None, if there is no such file or it cannot be read."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {
                node: KnownNode(mark, [Slot.of(plain) for plain in slots])
                for node, (mark, slots) in json.loads(self._path.read_text()).items()
            }
        return {}

    def write(self, nodes: Mapping[str, KnownNode]) -> None:
        plain = {
            name: (node.mark, [asdict(slot) for slot in node.slots]) for name, node in nodes.items()
        }
        beside = self._path.with_suffix(".new")
        with suppress(OSError):  # a full disk: what was known before is still there
            beside.write_text(json.dumps(plain))
            beside.replace(self._path)
