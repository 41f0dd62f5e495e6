"""The context of a simulation: virtual time with its events, random numbers, and a trace."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random

#: wall clock at virtual time 0
WALL_AT_START = 1_000_000.0


class CrashedError(BaseException):
    """An injected crash of the controller. No handler of the service may catch it."""


class ControllerInstance:
    """One process of the controller, from its start to its crash."""

    def __init__(self) -> None:
        self.alive = True


class FaultContext:
    """`rng` decides everything. `note` writes the trace; its hash identifies a run."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self.trace: list[str] = []
        self._keep = keep_trace
        self._hash = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[float, int, Callable[[], None], ControllerInstance | None]] = []
        self._numbers = count()
        self._wall_offset = WALL_AT_START
        self._uses_left: int | None = None
        self.instance = ControllerInstance()

    # time

    def after(
        self, seconds: float, do: Callable[[], None], instance: ControllerInstance | None = None
    ) -> None:
        """Schedules `do`; with `instance` only if that controller still lives then."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._numbers), do, instance))

    def step(self, until: float) -> bool:
        """Executes the next event. False: there is none until then, and the time is `until` now."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        at, _, do, instance = heapq.heappop(self._heap)
        self.now = at
        if instance is None or instance.alive:
            do()
        return True

    def run(self, until: float) -> None:
        while self.step(until):
            pass

    def wall(self) -> float:
        return self._wall_offset + self.now

    def set_wall_back(self, seconds: float) -> None:
        self._wall_offset -= seconds

    # crashes

    def crash_after(self, uses: int | None) -> None:
        """Crashes the controller after this number of uses of its dependencies; None: never."""
        self._uses_left = uses

    def use(self, what: str) -> None:
        """Counts the use of a dependency by the controller; raises CrashedError at the last."""
        if self._uses_left is None:
            return
        self._uses_left -= 1
        if self._uses_left <= 0:
            self._uses_left = None
            self.fault("crash", what)
            raise CrashedError(what)

    # the record

    def fault(self, kind: str, what: str) -> None:
        self.faults[kind] += 1
        self.note(f"FAULT {kind}: {what}")

    def violation(self, what: str) -> None:
        if what not in self.violations:
            self.violations.append(what)
            self.note(f"VIOLATION {what}")

    def note(self, text: str) -> None:
        line = f"{self.now:10.3f}  {text}"
        self._hash.update(line.encode(errors="backslashreplace"))
        if self._keep:
            self.trace.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
