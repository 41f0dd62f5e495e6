"""`ones-exec`: the small parent that owns the processes of one job on one node. Stdlib only.

It outlives the controller: a killed controller harms nobody. Killed itself, it takes its
workers with it, and whoever holds the lock on the run directory next says what was lost.
"""

from __future__ import annotations

from ones.exec.output import Chunk, drop_oldest, read_output
from ones.exec.records import Exit, Spec, Status, known_launches, read_exit, read_spec, read_status
from ones.exec.remains import clear_up, is_locked

__all__ = [
    "Chunk",
    "Exit",
    "Spec",
    "Status",
    "clear_up",
    "drop_oldest",
    "is_locked",
    "known_launches",
    "read_exit",
    "read_output",
    "read_spec",
    "read_status",
]
