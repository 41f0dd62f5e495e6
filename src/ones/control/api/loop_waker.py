"""How other threads wake the server's loop: once for all that has gathered.

`call_soon_threadsafe` writes to a socket each time, and so lets go of the interpreter's lock:
a thread that woke a hundred waiters one by one would wait a hundred times to get it back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache


class LoopWaker:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._rung = False

    def ring(self, call: Callable[[], object]) -> None:
        """From any thread: to be called in the loop, soon, in order."""
        self._calls.append(call)
        # whoever finds it rung has come before the answer: its call is among those answered
        if not self._rung:
            self._rung = True
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._rung = False
        while self._calls:
            self._calls.popleft()()


def loop_waker() -> LoopWaker:
    """Of the loop that is running."""
    return _bell_of(asyncio.get_running_loop())


@lru_cache(maxsize=1)  # a service has one loop; tests have one after the other
def _bell_of(loop: asyncio.AbstractEventLoop) -> LoopWaker:
    return LoopWaker(loop)
