"""Waking a thread that waits in a selector."""

from __future__ import annotations

import socket
from contextlib import suppress


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
