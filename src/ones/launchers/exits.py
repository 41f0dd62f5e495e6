"""Exit records without a process: it never started, or cannot run any more where it was."""

from __future__ import annotations

import time

from ones.exec import Exit
from ones.exec.records import storable


def not_started(why: str) -> Exit:
    return Exit(code=None, at=time.time(), cause="not-started", message=storable(why))


def fenced(why: str) -> Exit:
    return Exit(code=None, at=time.time(), cause="fenced", message=storable(why))
