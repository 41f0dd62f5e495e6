"""`ones-exec`: the supervisor that owns the processes of one job on one node. Stdlib only.

It outlives the controller: when the controller is killed, training goes on. When ones-exec is
killed its workers die with it, and the next holder of the run directory's lock records the loss.
"""

from __future__ import annotations

from ones.exec.records import Exit, Launch, Status

__all__ = ["Exit", "Launch", "Status"]
