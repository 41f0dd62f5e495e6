"""The jobs that the network sees, and the moves that it may choose.

Up to 24 jobs: waiting ones, in their order, then running ones, by submission. A move gives one job
another size. No move takes a job's last GPU: jobs are not preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import log, log2

import numpy as np

from ones.core.view import JobView, View
from ones.policies.drl.kind_table import UNKNOWN_SECONDS, KindTable
from ones.policies.drl.network import FEATURES, SIZES, Flags, Floats, Observation

#: maximum number of jobs in a decision
WINDOW = 24


@dataclass(frozen=True, slots=True)
class WindowJob:
    """One job of the window."""

    job: JobView
    batch: int  # global, fixed; 0: the script's own, not known yet
    gpus: int  # allocated
    sizes: tuple[int, ...]  # GPUs for each of SIZES; 0: not possible
    seconds_left: float  # on one GPU, estimated
    speedups: tuple[float, ...]  # relative to one GPU; () if not measured


@dataclass(frozen=True, slots=True)
class JobWindow:
    jobs: tuple[WindowJob, ...]
    observation: Observation

    def move(self, choice: int) -> tuple[WindowJob, int] | None:
        """The job and its new size; None: no change."""
        if choice == self.observation.nothing:
            return None
        job = self.jobs[choice // len(SIZES)]
        return job, job.sizes[choice % len(SIZES)]


def make_window(view: View, kinds: KindTable) -> JobWindow | None:
    """None if there is no job, or no valid move."""
    jobs = list(islice(view.waiting, WINDOW))
    waiting = len(jobs)
    if len(jobs) < WINDOW:
        schedule = view.schedule
        running = (view.job(job) for job in view.jobs if job in schedule)  # by submission
        jobs += islice(running, WINDOW - len(jobs))
    if not jobs:
        return None
    window = tuple(_window_job(job, view, kinds) for job in jobs)
    valid = _valid_moves(view, window, waiting)
    if not valid.any():
        return None
    return JobWindow(window, Observation(_features(view, window), valid))


def fixed_batch(job: JobView) -> int:
    """The requested batch, or the script's own; 0 until that is known."""
    return job.job.requested_batch or job.base_batch or 0


def _window_job(job: JobView, view: View, kinds: KindTable) -> WindowJob:
    batch = fixed_batch(job)
    step = kinds.step_seconds(job, batch, view.cluster.width) if batch else ()
    speedups = tuple(step[0] / t for t in step)
    done = job.progress.samples
    if step:
        left = kinds.samples_left(job, batch)
        # no estimate: as much again as it has done, or a default
        samples = left if left is not None else max(done, UNKNOWN_SECONDS * batch / step[0])
        seconds = samples / batch * step[0]
    else:
        seconds = max(UNKNOWN_SECONDS, job.run_seconds_at(view.now))
    return WindowJob(
        job=job,
        batch=batch,
        gpus=job.wanted.n_gpus if job.wanted else 0,
        sizes=_possible_sizes(job, batch, known=bool(step)),
        seconds_left=seconds,
        speedups=speedups,
    )


def _possible_sizes(job: JobView, batch: int, *, known: bool) -> tuple[int, ...]:
    """Every size within the limits of the job, once; only the requested one if not measured."""
    least, most = job.job.min_gpus, job.max_gpus
    if batch:
        most = max(least, batch if most is None else min(most, batch))
    asked = job.job.requested_gpus
    sizes: list[int] = []
    for k, size in enumerate(SIZES):
        wanted = size if known else asked
        wanted = max(wanted, least) if most is None else min(max(wanted, least), most)
        # not measured: at the index of the first size that is large enough
        fits = wanted not in sizes and (known or size >= wanted or k == len(SIZES) - 1)
        sizes.append(wanted if fits else 0)
    return tuple(sizes)


def _valid_moves(view: View, jobs: tuple[WindowJob, ...], waiting: int) -> Flags:
    free = len(view.free)
    valid = np.zeros((len(jobs), len(SIZES)), np.bool_)
    first = None  # priority of the first job that can start: none overtakes it
    for i, job in enumerate(jobs):
        if job.job.pinned:
            continue
        room = view.room(job.job.job.owner)
        most = free if room is None else min(free, room)
        for k, size in enumerate(job.sizes):
            valid[i, k] = size > 0 and size != job.gpus and size - job.gpus <= max(0, most)
        if i < waiting and valid[i].any():
            first = job.job.priority if first is None else first
            if job.job.priority < first:
                valid[i] = False
    if first is not None:
        # a job can start: others may only shrink, and "no change" is not valid
        for i, job in enumerate(jobs[waiting:], start=waiting):
            valid[i] &= np.array(job.sizes) < job.gpus
    return np.append(valid.ravel(), first is None)


def _features(view: View, jobs: tuple[WindowJob, ...]) -> Floats:
    rows = np.empty((len(jobs), FEATURES))
    gpus = max(1, view.cluster.n_gpus)
    crowd = (
        len(view.free) / gpus,
        min(view.n_waiting, 32) / 32,
        min(len(view.jobs), 64) / 64,
    )
    for row, job in zip(rows, jobs, strict=True):
        row[0] = job.gpus > 0
        row[1] = log2(1 + job.gpus) / 6
        row[2] = log(1 + job.seconds_left) / 8
        row[3] = log(1 + max(0.0, view.now - job.job.job.submitted_at)) / 8
        if job.speedups:
            row[4:8] = [s / n for s, n in zip(job.speedups[1:5], SIZES[1:5], strict=True)]
        else:
            row[4:8] = 0.0
        row[8:11] = crowd
        row[11] = log(1 + job.job.switch_cost.rescale_seconds) / 4
    return rows
