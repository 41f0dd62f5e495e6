"""Nodes that are slow for some time, and slow every job with a worker there.

In each period a node is slow or not, and if so for a part of the period, drawn by seed, node and
period alone: the same under every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from zlib import crc32

from ones.core.cluster import NodeId
from ones.core.schedule import Allocation
from ones.sim.noise import uniform

#: a node is slow for `SLOW_SECONDS` in this share of its periods: 10 % of the time
PERIOD_SECONDS, SLOW_SECONDS, SLOW_SHARE = 600.0, 300.0, 0.2
_WHICH, _WHEN = 7, 8  # keys of random numbers, by use


@dataclass(frozen=True, slots=True)
class Stragglers:
    factor: float  # on step times; 1: no node is ever slow
    seed: int = 0

    def __bool__(self) -> bool:
        return self.factor != 1.0

    def at(self, allocation: Allocation, now: float) -> tuple[float, float]:
        """Factor on the step time of a job with these workers, and when it may change next."""
        if not self:
            return 1.0, inf
        slow, change = False, inf
        for node in {worker.gpu.node for worker in allocation.workers}:
            begins, ends = self._window(node, int(now // PERIOD_SECONDS))
            slow = slow or begins <= now < ends
            later = [at for at in (begins, ends) if at > now]
            next_period = (now // PERIOD_SECONDS + 1) * PERIOD_SECONDS
            change = min(change, *later, next_period)
        return (self.factor if slow else 1.0), change

    def _window(self, node: NodeId, period: int) -> tuple[float, float]:
        """Begin and end of the slow time of a node in a period; equal if there is none."""
        key = (self.seed, crc32(node.encode()), period)
        begins = period * PERIOD_SECONDS
        if uniform(*key, _WHICH) >= SLOW_SHARE:
            return begins, begins
        begins += (PERIOD_SECONDS - SLOW_SECONDS) * uniform(*key, _WHEN)
        return begins, begins + SLOW_SECONDS


NO_STRAGGLERS = Stragglers(1.0)
