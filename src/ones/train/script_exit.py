"""The end of a script: reports that it is done, or the memory limit if memory ran out."""

from __future__ import annotations

import atexit
import sys
from types import TracebackType
from typing import Protocol

from ones.train.memory import is_out_of_memory
from ones.train.worker_context import WorkerContext
from ones.wire.messages import MemoryLimit


class Script(Protocol):
    def memory_limit(self) -> int | None:
        """The samples that fit, after memory ran out."""

    def end_script(self) -> None:
        """Tells the other workers that the script has left its loops."""


def handle_exit(script: Script, context: WorkerContext) -> None:
    failed = False
    previous = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        nonlocal failed
        failed = True
        limit = script.memory_limit() if is_out_of_memory(error) else None
        if limit is not None:
            context.report_memory_limit(limit)
            context.report(MemoryLimit(limit))
        previous(kind, error, trace)

    def at_exit() -> None:
        if context.has_left:
            return
        if failed:
            context.close()
            return
        script.end_script()
        context.finish(done=True)

    sys.excepthook = excepthook
    atexit.register(at_exit)
