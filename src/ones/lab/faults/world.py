"""Virtual time: a heap of what will happen, one generator of random numbers, and a trace."""

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
    """The injected end of the controller. No handler of the service may catch it."""


class Life:
    """One run of the controller, from its start to its crash."""

    def __init__(self) -> None:
        self.alive = True


class World:
    """`dice` decides everything; `note` writes the trace, whose hash tells two runs apart."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.dice = Random(seed)
        self.now = 0.0
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self.trace: list[str] = []
        self._keep = keep_trace
        self._hash = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[float, int, Callable[[], None], Life | None]] = []
        self._numbers = count()
        self._wall_offset = WALL_AT_START
        self._uses_left: int | None = None
        self.life = Life()

    # time

    def after(self, seconds: float, do: Callable[[], None], life: Life | None = None) -> None:
        """`life`: only if that run of the controller still lives."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._numbers), do, life))

    def step(self, until: float) -> bool:
        """Let the next thing happen. False: there is none by then, and it is that late now."""
        if not self._heap or self._heap[0][0] > until:
            self.now = max(self.now, until)
            return False
        at, _, do, life = heapq.heappop(self._heap)
        self.now = at
        if life is None or life.alive:
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

    def arm(self, uses: int | None) -> None:
        """The controller ends at so many uses of what it depends on; None: it lives."""
        self._uses_left = uses

    def touch(self, what: str) -> None:
        """The controller uses a dependency."""
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
