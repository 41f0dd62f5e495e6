"""State of the script's own: `job.state` and the objects of `job.also`.

It is sent to joining workers and kept in checkpoints.
"""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from ones.errors import UserError


class ScriptState:
    """A dict of plain values, and named objects with `state_dict` and `load_state_dict`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._objects: dict[str, Any] = {}
        self._received: dict[str, Any] = {}  # for objects that the script has not named yet

    def add(self, objects: dict[str, Any]) -> None:
        """Registers objects; a state that was received before is loaded now."""
        for name, item in objects.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(item, method, None)):
                    raise UserError(
                        f"job.also: {name} ({type(item).__name__}) has no {method}: give an object"
                        " with state_dict and load_state_dict, or keep plain values in job.state"
                    )
            if name in self._objects:
                raise UserError(f"job.also: {name} is given twice")
            self._objects[name] = item
            if name in self._received:
                item.load_state_dict(self._received.pop(name))

    @property
    def has_schedule(self) -> bool:
        return any(isinstance(item, LRScheduler) for item in self._objects.values())

    def state(self) -> dict[str, Any]:
        also = {name: item.state_dict() for name, item in self._objects.items()}
        return {"values": self.values, "also": self._received | also}

    def load(self, state: dict[str, Any]) -> None:
        self.values.clear()
        self.values.update(state["values"])
        self._received = dict(state["also"])
        for name, item in self._objects.items():
            if name in self._received:
                item.load_state_dict(self._received.pop(name))
