"""Work from other threads for a launcher's thread, and how that thread waits for it."""

from __future__ import annotations

import logging
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

log = logging.getLogger(__name__)


class HasFile(Protocol):
    def fileno(self) -> int: ...


class SelectorWaker:
    """A file for a selector that other threads and signal handlers make readable."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        for end in (self._reading, self._writing):
            end.setblocking(False)

    def fileno(self) -> int:
        return self._reading.fileno()

    @property
    def wakeup_fd(self) -> int:
        """For `signal.set_wakeup_fd`."""
        return self._writing.fileno()

    def wake(self) -> None:
        with suppress(OSError):  # full: it is readable already; closed: no thread waits
            self._writing.send(b"x")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            self._reading.recv(4096)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()


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
    """Returns those that can be read, and connections that can send what they have kept; nothing
    when the time is over."""
    with selectors.DefaultSelector() as selector:
        for file in files:
            writes = selectors.EVENT_WRITE if getattr(file, "wants_to_write", False) else 0
            selector.register(file, selectors.EVENT_READ | writes, file)
        return [key.data for key, _ in selector.select(seconds)]
