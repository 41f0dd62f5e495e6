"""The inbox of the engine, and its clock: where the controller waits, the world goes on."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

from ones.control.clock import Clock
from ones.control.live.live_state import Task
from ones.lab.faults.world import World


class SimulatedInbox:
    """See `ones.control.live.live_state.Inbox`. `idle` is called when the controller has nothing to
    do: all that it was told has been handled."""

    def __init__(self, world: World, idle: Callable[[], None]) -> None:
        self._world, self._idle = world, idle
        self._stimuli: deque[Task] = deque()

    def put(self, stimulus: Task, /) -> None:
        self._world.touch("inbox, put")
        self._stimuli.append(stimulus)

    def get(self, *, timeout: float | None = None) -> Task:
        self._world.touch("inbox, get")
        until = self._world.now + (3600.0 if timeout is None else timeout)
        if not self._stimuli:
            self._idle()
        while not self._stimuli:
            if not self._world.step(until):
                raise queue.Empty
        return self._stimuli.popleft()

    def empty(self) -> bool:
        return not self._stimuli


class SimulatedClock(Clock):
    """The real clock over virtual time; every look at it may be the last."""

    def __init__(self, world: World, not_before: float) -> None:
        self._world = world
        super().__init__(not_before, wall=world.wall, monotonic=self._read)

    def _read(self) -> float:
        self._world.touch("clock")
        return self._world.now
