"""Work from other threads for a launcher's thread, and how that thread waits for it."""

from __future__ import annotations

import logging
import selectors
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from ones.exec.waker import SelectorWaker

log = logging.getLogger(__name__)


class HasFile(Protocol):
    def fileno(self) -> int: ...


class WorkQueue:
    """Functions that other threads want to run in this thread, in order."""

    def __init__(self) -> None:
        self._waker = SelectorWaker()
        self._work: deque[Callable[[], None]] = deque()

    def fileno(self) -> int:
        return self._waker.fileno()

    def add(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._waker.wake()

    def run_all(self) -> None:
        self._waker.clear()  # first: work that is added meanwhile wakes the thread again
        while self._work:
            try:
                self._work.popleft()()
            except Exception:
                log.exception("request to the launcher failed")

    def close(self) -> None:
        self._waker.close()


def wait_for_input(files: Iterable[HasFile], seconds: float | None) -> list[HasFile]:
    """Waits; returns files that can be read, and connections that can send their unsent data.

    Returns nothing when the time is over.
    """
    with selectors.DefaultSelector() as selector:
        for file in files:
            writes = selectors.EVENT_WRITE if getattr(file, "wants_to_write", False) else 0
            selector.register(file, selectors.EVENT_READ | writes, file)
        return [key.data for key, _ in selector.select(seconds)]
