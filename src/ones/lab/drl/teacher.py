"""What the network is taught first: start in order, then give GPUs where they save most seconds.

A fair plan for the jobs of the window comes first: everybody one GPU, then doublings,
each time where a GPU saves most seconds (Optimus's greedy), while they speed a job up
enough. Then the one move that goes there: a start, room for one, or growth that pays for
its pause. Only what the window shows is used.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from ones.policies.drl.network import SIZES
from ones.policies.drl.window import JobWindow, WindowJob

#: doubling the GPUs must make a job faster by this factor
LEAST_STEP = 1.2
#: seconds that growth must save beyond the pause
LEAST_GAIN = 60.0
#: part of the cluster that is planned for; the rest awaits who comes next
PLANNED = 0.8
#: part of the free GPUs that a start takes at most
START = 0.5


def teach(window: JobWindow, gpus: int) -> int:
    """On a cluster of so many GPUs."""
    menu = len(SIZES)
    open_moves = window.observation.valid[:-1].reshape(len(window.jobs), menu)
    plan = _plan(window.jobs, int(PLANNED * gpus))
    free = round(window.observation.features[0, 8] * gpus)
    waits = [i for i, seat in enumerate(window.jobs) if not seat.gpus]
    for i in waits:
        sizes: list[int] = np.flatnonzero(open_moves[i]).tolist()
        if sizes:
            most = max(1.0, START * free)
            fair = [k for k in sizes if k <= plan[i] and window.jobs[i].sizes[k] <= most]
            return i * menu + max(fair, default=sizes[0])
    moves = []  # (seconds saved, choice)
    for i, seat in enumerate(window.jobs):
        if not seat.gpus or not seat.speedups:
            continue
        for k in np.flatnonzero(open_moves[i]).tolist():
            gain = seat.seconds_left * (1 / _speedup(seat) - 1 / seat.speedups[k])
            gain -= seat.job.switch_cost.rescale_seconds + LEAST_GAIN
            grows = seat.sizes[k] > seat.gpus
            stays = free - seat.sizes[k] + seat.gpus >= (1 - PLANNED) * gpus
            pays = k <= plan[i] and gain > 0 and stays and not waits
            if pays if grows else k == plan[i] and waits:
                moves.append((gain, i * menu + k))
    if moves:
        return max(moves)[1]
    return (
        window.observation.nothing
        if window.observation.valid[-1]
        else int(np.argmax(window.observation.valid))
    )


def _plan(seats: tuple[WindowJob, ...], gpus: int) -> list[int]:
    """For each job a place of the menu."""
    plan = [0] * len(seats)
    left = gpus - len(seats)

    def doubling(i: int) -> tuple[float, int] | None:
        seat, k = seats[i], plan[i]
        if not seat.speedups or k + 1 == len(SIZES):
            return None
        now, then = seat.speedups[k], max(seat.speedups[k + 1 :])
        if then < LEAST_STEP * now:
            return None
        return -seat.seconds_left * (1 / now - 1 / seat.speedups[k + 1]) / SIZES[k], i

    steps = [step for i in range(len(seats)) if (step := doubling(i)) is not None]
    heapify(steps)
    while steps:
        _, i = heappop(steps)
        if SIZES[plan[i]] > left:
            continue
        left -= SIZES[plan[i]]
        plan[i] += 1
        if (step := doubling(i)) is not None:
            heappush(steps, step)
    return plan


def _speedup(seat: WindowJob) -> float:
    """At its present size, or between those of the menu."""
    return float(np.interp(seat.gpus, SIZES, seat.speedups))
