"""The teacher of the network: starts jobs in order, then gives GPUs where they save most seconds.

It first plans the sizes of the jobs of the window: one GPU each, then doublings where a GPU saves
most seconds (the greedy of Optimus), while they speed a job up enough. Then it chooses the one
move towards the plan: a start, space for one, or growth that pays for its pause.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from ones.policies.drl.network import SIZES
from ones.policies.drl.window import JobWindow, WindowJob

#: minimum speedup by doubling the GPUs of a job
MIN_STEP = 1.2
#: seconds that growth must save in addition to the pause
MIN_GAIN = 60.0
#: share of the cluster that is planned; the rest is for future jobs
PLANNED = 0.8
#: maximum share of the free GPUs for a start
START = 0.5


def teacher_choice(window: JobWindow, gpus: int) -> int:
    """The choice of the teacher on a cluster of `gpus` GPUs."""
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
            gain -= seat.job.switch_cost.rescale_seconds + MIN_GAIN
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
    """The planned size of each job, as an index of its sizes."""
    plan = [0] * len(seats)
    left = gpus - len(seats)

    def doubling(i: int) -> tuple[float, int] | None:
        seat, k = seats[i], plan[i]
        if not seat.speedups or k + 1 == len(SIZES):
            return None
        now, then = seat.speedups[k], max(seat.speedups[k + 1 :])
        if then < MIN_STEP * now:
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
    """Speedup at the present size, interpolated between the sizes of the menu."""
    return float(np.interp(seat.gpus, SIZES, seat.speedups))
