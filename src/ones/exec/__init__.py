"""`ones-exec`: the supervisor that owns the processes of one job on one node. Stdlib only.

It outlives the controller: when the controller is killed, training goes on. When ones-exec is
killed its workers die with it, and the next holder of the run directory's lock records the loss.
"""

from __future__ import annotations

from ones.exec.cleanup import clean_up, is_locked
from ones.exec.output import Chunk, drop_oldest, read_output
from ones.exec.records import Exit, Spec, Status, known_launches, read_exit, read_spec, read_status

__all__ = [
    "Chunk",
    "Exit",
    "Spec",
    "Status",
    "clean_up",
    "drop_oldest",
    "is_locked",
    "known_launches",
    "read_exit",
    "read_output",
    "read_spec",
    "read_status",
]
