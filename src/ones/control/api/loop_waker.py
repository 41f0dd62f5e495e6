"""Runs calls of other threads in the server's loop, and wakes the loop once for many calls.

`call_soon_threadsafe` writes to a socket each time, which releases the interpreter's lock. A thread
that woke a hundred waiters one by one would wait a hundred times to get the lock back.
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
        self._scheduled = False

    def ring(self, call: Callable[[], object]) -> None:
        """Call a function in the loop, soon and in order. May be called by any thread."""
        self._calls.append(call)
        # `_run` resets the flag before it reads the calls, so no call is missed
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._scheduled = False
        while self._calls:
            self._calls.popleft()()


def loop_waker() -> LoopWaker:
    """The waker of the running loop."""
    return _waker_of(asyncio.get_running_loop())


@lru_cache(maxsize=1)  # a service has one loop; tests have one after the other
def _waker_of(loop: asyncio.AbstractEventLoop) -> LoopWaker:
    return LoopWaker(loop)
