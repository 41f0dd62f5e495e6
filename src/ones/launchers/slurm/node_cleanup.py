"""Fencing of a node: the lease file of its workers, and the removal of leftover processes.

Leftovers are every ones-exec and worker of an earlier agent.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from ones.exec.files import make_private
from ones.exec.processes import ProcessInfo, all_processes, descendants, kill_all

SECONDS = 10.0


def lease_file(root: Path, node: str) -> Path:
    """The path of the lease, on the node itself: a shared file system may hang."""
    directory = Path(os.environ.get("TMPDIR", "/tmp"), f"ones-{os.getuid()}")
    make_private(directory)
    name = hashlib.sha256(f"{root}\0{node}".encode()).hexdigest()[:16]
    return directory / f"{name}.lease"


def clear_node(root: Path, node: str) -> None:
    """Kills all leftovers. Raises TimeoutError if a process cannot be killed."""
    kill_all(lambda: leftovers(root, node), f"node {node}", SECONDS)


def leftovers(root: Path, node: str) -> list[ProcessInfo]:
    """Leftover processes, found by the run directory that they were started with."""
    live = f"{root / 'live'}/".encode()
    end = f"/{node}".encode()
    found = []
    for process in all_processes():
        with suppress(OSError):
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            directory = _argument(command) or _variable(process.pid)
            if directory.startswith(live) and directory.endswith(end):
                found.append(process)
    below = descendants([process.pid for process in found])
    return list({process.pid: process for process in (*found, *below)}.values())


def _argument(command: list[bytes]) -> bytes:
    """RUN_DIR of the command `python -m ones.exec RUN_DIR ...`; empty for other commands."""
    if command[1:3] == [b"-m", b"ones.exec"] and len(command) > 3:
        return command[3]
    return b""


def _variable(pid: int) -> bytes:
    for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == b"ONES_JOB_DIR":
            return value
    return b""
