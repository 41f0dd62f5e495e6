"""State of a simulation: time, the job on each GPU, and scheduled callbacks.

A callback has a token of its job, and is dropped if the job has another token when it is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf

from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.job import Generation, JobId
from ones.errors import BugError
from ones.sim.sim_job import SimJob

#: token of a callback that is never dropped
ALWAYS = -(1 << 62)

Callback = Callable[[SimJob], None]


class SimState:
    def __init__(self) -> None:
        self.now = 0.0
        self.jobs: dict[JobId, SimJob] = {}
        self.on: dict[Gpu, SimJob] = {}
        self.out: deque[ev.Event] = deque()  # emitted, and not yet delivered
        self._heap: list[tuple[float, int, SimJob, int, Callback]] = []
        self._counter = 0

    # time

    def at(self, at: float, job: SimJob, token: int, what: Callback) -> None:
        """Schedules a callback. `token`: `job.run`, `-job.order`, or `ALWAYS`."""
        self._counter += 1
        heappush(self._heap, (at, self._counter, job, token, what))

    def next_time(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def run_next(self) -> None:
        """Runs the earliest callback, unless its token is out of date."""
        _, _, job, token, what = heappop(self._heap)
        if token in (job.run, -job.order, ALWAYS):
            what(job)

    def emit(self, event: ev.Event) -> None:
        self.out.append(event)

    # workers

    def enter(self, job: SimJob, gpus: Iterable[Gpu]) -> None:
        for gpu in gpus:
            if gpu in self.on:
                raise BugError(
                    f"{job.job.id} was placed on GPU {gpu}, which {self.on[gpu].job.id} uses"
                )
            self.on[gpu] = job
            job.present.add(gpu)
            job.prepared.pop(gpu, None)

    def vanish(self, gpu: Gpu) -> SimJob | None:
        """Removes the worker on a GPU without an event; returns its job."""
        job = self.on.pop(gpu, None)
        if job is not None:
            job.present.discard(gpu)
        return job

    def leave(self, job: SimJob, gpus: Iterable[Gpu], generation: Generation) -> None:
        for gpu in gpus:
            if self.on.get(gpu) is job:
                self.vanish(gpu)
                self.emit(ev.WorkerLeft(self.now, job.job.id, generation, gpu))

    def leave_after(
        self, seconds: float, job: SimJob, gpus: list[Gpu], generation: Generation
    ) -> None:
        def gone(job: SimJob) -> None:
            self.leave(job, gpus, generation)

        if seconds:
            self.at(self.now + seconds, job, ALWAYS, gone)
        else:
            gone(job)
