"""What the network is shown, and which moves are open to it.

Up to 24 jobs: those that wait, in their order, then those that run, by submission. A
move gives one job another size. None takes a job's last GPU: nobody is preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import log, log2

import numpy as np

from ones.core.view import JobView, View
from ones.policies.drl.kinds import UNKNOWN_SECONDS, KindBook
from ones.policies.drl.network import FEATURES, SIZES, Flags, Floats, Look

#: jobs that a decision sees
WINDOW = 24


@dataclass(frozen=True, slots=True)
class Seat:
    """One job of the window."""

    job: JobView
    batch: int  # global, fixed for its life; 0: the script's own, which nobody knows yet
    gpus: int  # held or on their way
    sizes: tuple[int, ...]  # GPUs for each size of the menu; 0: not open
    seconds_left: float  # on one GPU, as far as can be told
    speedups: tuple[float, ...]  # against one GPU; () if nobody knows


@dataclass(frozen=True, slots=True)
class Window:
    seats: tuple[Seat, ...]
    look: Look

    def move(self, choice: int) -> tuple[Seat, int] | None:
        """The job and its new size; None: nothing changes."""
        if choice == self.look.nothing:
            return None
        seat = self.seats[choice // len(SIZES)]
        return seat, seat.sizes[choice % len(SIZES)]


def look_around(view: View, book: KindBook) -> Window | None:
    """None if no job is there, or no move is open."""
    jobs = list(islice(view.waiting, WINDOW))
    waiting = len(jobs)
    if len(jobs) < WINDOW:
        schedule = view.schedule
        running = (view.job(job) for job in view.jobs if job in schedule)  # by submission
        jobs += islice(running, WINDOW - len(jobs))
    if not jobs:
        return None
    seats = tuple(_seat(job, view, book) for job in jobs)
    valid = _open_moves(view, seats, waiting)
    if not valid.any():
        return None
    return Window(seats, Look(_features(view, seats), valid))


def fixed_batch(job: JobView) -> int:
    """What its user asked for, or the script's own; 0 until that is known."""
    return job.job.requested_batch or job.base_batch or 0


def _seat(job: JobView, view: View, book: KindBook) -> Seat:
    batch = fixed_batch(job)
    step = book.step_seconds(job, batch, view.cluster.width) if batch else ()
    speedups = tuple(step[0] / t for t in step)
    done = job.progress.samples
    if step:
        left = book.samples_left(job, batch)
        # of a job without equals: as much again as it has done, or the usual
        samples = left if left is not None else max(done, UNKNOWN_SECONDS * batch / step[0])
        seconds = samples / batch * step[0]
    else:
        seconds = max(UNKNOWN_SECONDS, job.run_seconds_at(view.now))
    return Seat(
        job=job,
        batch=batch,
        gpus=job.wanted.n_gpus if job.wanted else 0,
        sizes=_menu(job, batch, known=bool(step)),
        seconds_left=seconds,
        speedups=speedups,
    )


def _menu(job: JobView, batch: int, *, known: bool) -> tuple[int, ...]:
    """Every size within what the job may have, once. Of a job whose speed nobody knows, only the
    size that was asked for."""
    least, most = job.job.min_gpus, job.max_gpus
    if batch:
        most = max(least, batch if most is None else min(most, batch))
    asked = job.job.requested_gpus
    sizes: list[int] = []
    for k, size in enumerate(SIZES):
        wanted = size if known else asked
        wanted = max(wanted, least) if most is None else min(max(wanted, least), most)
        # without knowledge: in the place of the first size that is large enough
        fits = wanted not in sizes and (known or size >= wanted or k == len(SIZES) - 1)
        sizes.append(wanted if fits else 0)
    return tuple(sizes)


def _open_moves(view: View, seats: tuple[Seat, ...], waiting: int) -> Flags:
    free = len(view.free)
    valid = np.zeros((len(seats), len(SIZES)), np.bool_)
    first = None  # priority of the first that can start: nobody overtakes it
    for i, seat in enumerate(seats):
        if seat.job.pinned:
            continue
        room = view.room(seat.job.job.owner)
        most = free if room is None else min(free, room)
        for k, size in enumerate(seat.sizes):
            valid[i, k] = size > 0 and size != seat.gpus and size - seat.gpus <= max(0, most)
        if i < waiting and valid[i].any():
            first = seat.job.priority if first is None else first
            if seat.job.priority < first:
                valid[i] = False
    if first is not None:
        # somebody can start: others may make room for it, but not take it, nor is it kept empty
        for i, seat in enumerate(seats[waiting:], start=waiting):
            valid[i] &= np.array(seat.sizes) < seat.gpus
    return np.append(valid.ravel(), first is None)


def _features(view: View, seats: tuple[Seat, ...]) -> Floats:
    rows = np.empty((len(seats), FEATURES))
    gpus = max(1, view.cluster.n_gpus)
    crowd = (
        len(view.free) / gpus,
        min(view.n_waiting, 32) / 32,
        min(len(view.jobs), 64) / 64,
    )
    for row, seat in zip(rows, seats, strict=True):
        job = seat.job
        row[0] = seat.gpus > 0
        row[1] = log2(1 + seat.gpus) / 6
        row[2] = log(1 + seat.seconds_left) / 8
        row[3] = log(1 + max(0.0, view.now - job.job.submitted_at)) / 8
        if seat.speedups:
            row[4:8] = [s / n for s, n in zip(seat.speedups[1:5], SIZES[1:5], strict=True)]
        else:
            row[4:8] = 0.0
        row[8:11] = crowd
        row[11] = log(1 + job.switch_cost.rescale_seconds) / 4
    return rows
