"""How a thread waits for lines and files, and for work that other threads have for it."""

from __future__ import annotations

import logging
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from ones.exec.line_protocol import Connection

log = logging.getLogger(__name__)


class HasFile(Protocol):
    def fileno(self) -> int: ...


class Bell:
    """Wakes who waits for it as for a file. Anybody may ring, and a signal's handler, too."""

    def __init__(self) -> None:
        self._hears, self._rings = socket.socketpair()
        for end in (self._hears, self._rings):
            end.setblocking(False)

    def fileno(self) -> int:
        return self._hears.fileno()

    @property
    def cord(self) -> int:
        """A file that rings when it is written to, for `signal.set_wakeup_fd`."""
        return self._rings.fileno()

    def ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: nobody waits
            self._rings.send(b"x")

    def silence(self) -> None:
        with suppress(BlockingIOError):
            self._hears.recv(4096)

    def close(self) -> None:
        self._hears.close()
        self._rings.close()


class Todo:
    """What anybody wants done in this thread, in the order of their asking."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._work: deque[Callable[[], None]] = deque()

    def fileno(self) -> int:
        return self._bell.fileno()

    def later(self, what: Callable[[], None]) -> None:
        self._work.append(what)
        self._bell.ring()

    def do_all(self) -> None:
        self._bell.silence()  # first: who asks while we work rings again
        while self._work:
            try:
                self._work.popleft()()
            except Exception:  # the others are not to blame
                log.exception("request to the launcher failed")

    def close(self) -> None:
        self._bell.close()


def wait_for(files: Iterable[HasFile], lines: Iterable[Connection], seconds: float | None) -> None:
    """Until something has come, or a line takes more of what is kept for it; or so long."""
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        for line in lines:
            writes = selectors.EVENT_WRITE if line.wants_to_write else 0
            selector.register(line, selectors.EVENT_READ | writes)
        selector.select(seconds)
