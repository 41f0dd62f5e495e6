"""The cheapest plan of a job over time slots at given prices: dynamic programming.

In each slot the job has one of a few numbers of GPUs, or none. A number of GPUs does a number of
work units in a slot, and costs the price of the slot for each GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

#: finest division of the work that one slot does on the smallest number of GPUs
RESOLUTION = 4
MAX_UNITS = 256


def work_units(steps: float, done_in_slot: Mapping[int, float]) -> tuple[int, dict[int, int]]:
    """The work in whole units, and the units that each number of GPUs does in a slot.

    `done_in_slot`: steps by number of GPUs.
    """
    least = done_in_slot[min(done_in_slot)]
    unit = max(least / RESOLUTION, steps / MAX_UNITS)
    units = {gpus: int(done / unit + 1e-9) for gpus, done in done_in_slot.items()}
    return max(1, ceil(steps / unit - 1e-9)), {gpus: n for gpus, n in units.items() if n > 0}


class PlanTable:
    """The cheapest plans that end with each slot.

    `units`: work done in a slot by number of GPUs; `room`: GPUs that are left in each slot.
    """

    def __init__(
        self, work: int, units: Mapping[int, int], prices: Sequence[float], room: Sequence[int]
    ) -> None:
        self._units = units
        self._costs = [np.full(work + 1, inf)]  # before each slot, by work that is still to do
        self._costs[0][work] = 0.0
        self._chosen: list[NDArray[np.int64]] = []  # GPUs in each slot, by work left after it
        for price, free in zip(prices, room, strict=True):
            before = self._costs[-1]
            after, pick = before.copy(), np.zeros(work + 1, np.int64)
            for gpus, done in units.items():
                if gpus > free:
                    continue
                moved = np.full(work + 1, inf)
                if done <= work:
                    moved[: work + 1 - done] = before[done:]
                moved[0] = before[: done + 1].min()  # the last slot may have more than is left
                moved += price * gpus
                better = moved < after - 1e-12
                after[better], pick[better] = moved[better], gpus
            self._costs.append(after)
            self._chosen.append(pick)

    def ends(self) -> Iterator[tuple[int, float]]:
        """Each number of slots in which the work can be done, and the lowest cost; a number that
        is no cheaper than a smaller one is left out."""
        for slots in range(1, len(self._costs)):
            if self._chosen[slots - 1][0]:
                yield slots, float(self._costs[slots][0])

    def plan(self, slots: int) -> tuple[int, ...]:
        """The GPUs of each slot in the cheapest plan that ends with this one."""
        left, sizes = 0, []
        for slot in range(slots - 1, -1, -1):
            gpus = int(self._chosen[slot][left])
            sizes.append(gpus)
            if gpus:
                done = self._units[gpus]
                left = int(self._costs[slot][: done + 1].argmin()) if not left else left + done
        return tuple(reversed(sizes))
