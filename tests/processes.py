"""Real processes in tests: small scripts, waiting without guessing, and proof that none is left."""

from __future__ import annotations

import shlex
from pathlib import Path

import psutil

from ones.testing.processes import PATIENCE, alive_below, command_of, is_alive, wait_for

__all__ = [
    "PATIENCE",
    "Gate",
    "alive_below",
    "children_of",
    "command_of",
    "is_alive",
    "wait_for",
]


class Gate:
    """What a process waits for until the test lets it go on: a file that is there or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        self.path.touch()

    def shell(self, then: str = "exit 0", *, first: str = "true") -> list[str]:
        """A command that does one thing, waits, and does the other."""
        wait = f"while [ ! -e {shlex.quote(str(self.path))} ]; do sleep 0.05; done"
        return ["sh", "-c", f"{first}; {wait}; {then}"]

    def __str__(self) -> str:
        return str(self.path)


def children_of(pid: int) -> list[int]:
    """Its direct children, of all its threads."""
    return [process.pid for process in psutil.process_iter(["ppid"]) if process.info["ppid"] == pid]
