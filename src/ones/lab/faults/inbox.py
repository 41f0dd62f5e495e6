"""The engine's inbox and clock in virtual time: the simulation advances while it waits."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

from ones.control.clock import Clock
from ones.control.live.live_state import Task
from ones.lab.faults.context import FaultContext


class SimulatedInbox:
    """See `ones.control.live.live_state.Inbox`. `idle` is called when the controller has handled
    everything."""

    def __init__(self, context: FaultContext, idle: Callable[[], None]) -> None:
        self._context, self._idle = context, idle
        self._stimuli: deque[Task] = deque()

    def put(self, stimulus: Task, /) -> None:
        self._context.use("inbox, put")
        self._stimuli.append(stimulus)

    def get(self, *, timeout: float | None = None) -> Task:
        self._context.use("inbox, get")
        until = self._context.now + (3600.0 if timeout is None else timeout)
        if not self._stimuli:
            self._idle()
        while not self._stimuli:
            if not self._context.step(until):
                raise queue.Empty
        return self._stimuli.popleft()

    def empty(self) -> bool:
        return not self._stimuli


class SimulatedClock(Clock):
    """The real clock over virtual time; the controller may crash when it reads it."""

    def __init__(self, context: FaultContext, not_before: float) -> None:
        self._context = context
        super().__init__(not_before, wall=context.wall, monotonic=self._read)

    def _read(self) -> float:
        self._context.use("clock")
        return self._context.now
