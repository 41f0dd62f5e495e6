"""Base class of policies with jobs of a fixed size that may be interrupted.

A job has the GPUs and the batch that its user asked for, or none. On every arrival and end the jobs
of the best rank run (`rigid_jobs.select_jobs`); outranked jobs go back into the queue through a
checkpoint. A policy defines the rank, and where a job may be placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, ClassVar

from ones.core import reasons
from ones.core.cluster import Gpu, NodeState
from ones.core.events import (
    CAPACITY_EVENTS,
    EpochFinished,
    Event,
    JobSubmitted,
    NodeDown,
    OwnerLimitSet,
    StepsDone,
    ThroughputMeasured,
)
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.packing import GpuPool
from ones.models.rigid_jobs import (
    JobQueue,
    Rank,
    RunningJob,
    Selection,
    WaitingGroup,
    allocation_of,
    select_jobs,
    size_of,
)
from ones.models.sharing import OwnerQuota

#: seconds until a better job tries again to interrupt one that is being changed
RETRY_SECONDS = 5.0


class PreemptivePolicy:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"
    follows_epochs: ClassVar[bool] = False  # whether an epoch changes the rank of its job

    def __init__(self) -> None:
        self._queue: JobQueue | None = None  # an index of the view, rebuilt when missing
        self._starting: dict[JobId, None] = {}  # to run, but without a GPU yet
        self.changed_jobs: list[JobId] = []  # jobs with a new note since the last event

    # for subclasses

    def waiting_key(self, job: JobView) -> tuple[int | tuple[str, int], Rank]:
        """Cell and key of a waiting job: they must not change while nothing happens to it."""
        raise NotImplementedError

    def waiting_rank(self, group: WaitingGroup, key: Rank, now: float) -> Rank:
        """The rank of a key, comparable with those of running jobs."""
        return key

    def running_rank(self, job: JobView, now: float) -> Rank:
        raise NotImplementedError

    def ranks_drift(self) -> bool:
        """Whether ranks of running jobs change with time."""
        return False

    def place(self, view: View, pool: GpuPool, job: JobView, size: int) -> tuple[Gpu, ...] | None:
        """The GPUs of a job; None: it waits rather than run on the free ones."""
        return pool.place(size)

    def start_why(self, job: JobView) -> str:
        """Why the job starts now, as the end of a sentence."""
        raise NotImplementedError

    def wait_note(self, job: JobView) -> str:
        raise NotImplementedError

    def wake_at(self, view: View, starting: Iterable[JobView]) -> float:
        """`starting`: jobs that are to run, but have no GPU yet."""
        return inf

    # common to all

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, PlanAdopted):
            for action in event.plan.actions:
                self.update_job(view, action.job)
            return
        self.changed_jobs = []
        if isinstance(event, OwnerLimitSet | NodeDown):
            self._queue = None  # may concern any job
            self._current_queue(view)
        elif isinstance(event, EpochFinished):
            if self.follows_epochs:
                self.update_job(view, event.job)
        elif isinstance(event, JobSubmitted):
            self.update_job(view, event.job.id)
            self.changed_jobs.append(event.job.id)
        elif not isinstance(event, StepsDone | ThroughputMeasured):
            job: JobId | None = getattr(event, "job", None)
            if job is not None:
                self.update_job(view, job)

    def decide(self, view: View) -> Decision:
        queue = self._current_queue(view)
        if not len(queue):
            return Decision(schedule=view.schedule)
        if self.ranks_drift():
            for running in tuple(queue.running):
                queue.add_running(self._running_job(view, view.job(running.job)))

        def quota(movable: list[RunningJob]) -> Callable[[tuple[str, ...], int], bool]:
            limited = [view.job(r.job) for r in movable if r.owner and not r.pinned]
            owners = OwnerQuota(view, limited)
            return lambda owner, gpus: not owner or owners.take(owner[0], gpus)

        most: dict[int, int] = {}
        while True:
            selection = select_jobs(
                queue,
                len(view.free),
                rank=lambda group, key: self.waiting_rank(group, key, view.now),
                quota=quota,
                most=most,
            )
            places, unplaced = self._place(view, selection)
            if unplaced is None:
                break
            # enough GPUs are free, but on too many nodes: for smaller jobs, then
            size = size_of(unplaced)
            most[size] = sum(size_of(view.job(job)) == size for job in places)
        again = view.now + RETRY_SECONDS if selection.ask_again else inf
        starting = [view.job(job) for job in (*self._starting, *places)]
        wake_at = min(again, self.wake_at(view, starting))
        return self._decision(view, selection, places, wake_at)

    def _place(
        self, view: View, selection: Selection
    ) -> tuple[dict[JobId, tuple[Gpu, ...]], JobView | None]:
        """The GPUs of the admitted jobs, up to the first that rather waits; and that job."""
        pool = GpuPool(view)
        for evicted in selection.evicted:
            pool.release(view.schedule[evicted].gpus)
        places: dict[JobId, tuple[Gpu, ...]] = {}
        for admitted in selection.admitted:
            job = view.job(admitted)
            gpus = self.place(view, pool, job, size_of(job))
            if gpus is None:
                return places, job
            places[admitted] = gpus
        return places, None

    def _decision(
        self,
        view: View,
        selection: Selection,
        places: Mapping[JobId, tuple[Gpu, ...]],
        wake_at: float,
    ) -> Decision:
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        for job_id, gpus in places.items():
            job = view.job(job_id)
            allocation = allocation_of(job, gpus)
            edit.put(job_id, allocation)
            notes[job_id] = reasons.started(len(gpus), allocation.batch, self.start_why(job))
        for evicted in selection.evicted:
            edit.drop(evicted)
            notes[evicted] = reasons.preempted(reasons.takers(view.schedule[evicted].gpus, places))
        for job_id in self.changed_jobs:
            if job_id in view.jobs and edit.get(job_id) is None:
                notes[job_id] = self.wait_note(view.job(job_id))
        return Decision(schedule=edit.done(), wake_at=wake_at, notes=notes)

    def _running_job(self, view: View, job: JobView) -> RunningJob:
        assert job.wanted is not None
        usable = [g for g in job.wanted.gpus if view.cluster.state_of(g) is NodeState.UP]
        return RunningJob(
            self.running_rank(job, view.now),
            job.id,
            _limited_owner(view, job),
            job.wanted.n_gpus,
            len(usable),
            job.pinned,
        )

    def _current_queue(self, view: View) -> JobQueue:
        if self._queue is None:
            self._queue, self._starting = JobQueue(), {}
            for job in view.jobs:
                self.update_job(view, job)
        return self._queue

    def update_job(self, view: View, job_id: JobId) -> None:
        """Moves a job into the queue, to the running jobs, or out."""
        queue = self._current_queue(view)
        self._starting.pop(job_id, None)
        if job_id not in view.jobs:
            queue.remove(job_id)
            return
        job = view.job(job_id)
        if job.wanted is not None:
            queue.add_running(self._running_job(view, job))
            if not job.occupied:
                self._starting[job_id] = None
        elif job.pinned:
            queue.remove(job_id)  # it is leaving
        else:
            cell, key = self.waiting_key(job)
            group = WaitingGroup(_limited_owner(view, job), size_of(job), cell)
            queue.add_waiting(job_id, group, key)

    def save(self) -> dict[str, Any]:
        return {"news": list(self.changed_jobs)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.changed_jobs = [JobId(job) for job in saved["news"]]
        self._queue = None


def _limited_owner(view: View, job: JobView) -> tuple[str, ...]:
    return () if view.room(job.job.owner) is None else (job.job.owner,)
