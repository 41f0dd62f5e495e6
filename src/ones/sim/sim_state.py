"""The stage of a simulation: what time it is, who stands where, and what is to happen when.

Whatever is planned for a job carries a token, and is void when the job has moved on since.
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

#: token of what happens whatever befalls the job
ALWAYS = -(1 << 62)

Happening = Callable[[SimJob], None]


class SimState:
    def __init__(self) -> None:
        self.now = 0.0
        self.jobs: dict[JobId, SimJob] = {}
        self.on: dict[Gpu, SimJob] = {}
        self.out: deque[ev.Event] = deque()  # said, and not yet heard
        self._heap: list[tuple[float, int, SimJob, int, Happening]] = []
        self._counter = 0

    # time

    def at(self, at: float, job: SimJob, token: int, what: Happening) -> None:
        """`token`: the job's run, its order with a minus, or `ALWAYS`."""
        self._counter += 1
        heappush(self._heap, (at, self._counter, job, token, what))

    def next_time(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def happen(self) -> None:
        """What was planned for the earliest moment, if it still holds."""
        _, _, job, token, what = heappop(self._heap)
        if token in (job.run, -job.order, ALWAYS):
            what(job)

    def say(self, event: ev.Event) -> None:
        self.out.append(event)

    # workers

    def enter(self, job: SimJob, gpus: Iterable[Gpu]) -> None:
        for gpu in gpus:
            if gpu in self.on:
                raise BugError(f"{job.job.id} was put on GPU {gpu} beside {self.on[gpu].job.id}")
            self.on[gpu] = job
            job.present.add(gpu)
            job.prepared.pop(gpu, None)

    def vanish(self, gpu: Gpu) -> SimJob | None:
        """The worker there is gone, and nobody has said so; whose it was."""
        job = self.on.pop(gpu, None)
        if job is not None:
            job.present.discard(gpu)
        return job

    def leave(self, job: SimJob, gpus: Iterable[Gpu], generation: Generation) -> None:
        for gpu in gpus:
            if self.on.get(gpu) is job:
                self.vanish(gpu)
                self.say(ev.WorkerLeft(self.now, job.job.id, generation, gpu))

    def leave_after(
        self, seconds: float, job: SimJob, gpus: list[Gpu], generation: Generation
    ) -> None:
        def gone(job: SimJob) -> None:
            self.leave(job, gpus, generation)

        if seconds:
            self.at(self.now + seconds, job, ALWAYS, gone)
        else:
            gone(job)
