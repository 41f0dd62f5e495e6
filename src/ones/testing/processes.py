"""Real processes in tests: waiting for conditions, and finding processes that are left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_Value = TypeVar("_Value")

PATIENCE = 120.0  # seconds; long, because only a failing test waits for it


def wait_for(
    what: Callable[[], _Value], message: str = "it did not happen", seconds: float = PATIENCE
) -> _Value:
    """Polls until the value is true and returns it; fails with `message` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < deadline, message
        time.sleep(0.01)


def alive_below(directory: Path) -> list[int]:
    """Processes of workers and jobs with their files below this directory; without processes
    that a launcher runs there for all jobs."""
    mark = f"DIR={directory}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if b"ones.launchers." in command:
            continue
        if state not in "ZX" and (mark in environment or str(directory).encode() in command):
            found.append(int(name))
    return found


def command_of(pid: int) -> list[bytes]:
    """Command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
