"""The view that a policy gets of the state, and frozen views of its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ones.core.cluster import Cluster
from ones.core.free_gpus import FreeGpus
from ones.core.job import (
    Configuration,
    Description,
    Forecast,
    Job,
    JobId,
    Progress,
    StepTime,
    SwitchCost,
)
from ones.core.lifecycle import Phase
from ones.core.schedule import Allocation, Schedule
from ones.core.waiting_jobs import WaitingJobs
from ones.errors import StaleViewError


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """All that a policy may know about a job, as a value that is safe to keep.

    The true length of a simulated job is not part of it.
    """

    job: Job
    number: int  # order of submission
    priority: float  # higher first; `penalty` is taken off already
    penalty: float  # from 0 to below 1, for past use of the owner (fair share)
    phase: Phase
    pinned: bool  # changing, blocked, or not elastic: its allocation must stay `wanted`
    blocked: bool  # on hold, waits for another job, or its array has enough tasks that may start
    wanted: Allocation | None
    held: Allocation | None
    description: Description | None
    progress: Progress
    profile: Mapping[Configuration, StepTime]
    local_limit: int | None  # maximum number of samples on one GPU at once
    switch_cost: SwitchCost
    booked_at: float  # `queue_seconds` and `run_seconds` are booked up to here
    queue_seconds: float
    run_seconds: float
    gpu_seconds: float
    occupied: int  # number of GPUs that the job's processes are on
    started_at: float | None
    rescales: int
    preemptions: int
    failures: int
    note: str
    forecast: Forecast | None

    @property
    def id(self) -> JobId:
        return self.job.id

    @property
    def epochs(self) -> float:
        """Passes over the data so far, with the fraction of the current one."""
        if self.description is None:
            return 0.0
        return self.progress.samples / self.description.dataset_size

    @property
    def base_batch(self) -> int | None:
        """The batch that the learning rate was tuned for, by the script or else by the user."""
        return self.description.base_batch if self.description else self.job.requested_batch

    @property
    def max_gpus(self) -> int | None:
        return self.job.max_gpus

    def run_seconds_at(self, now: float) -> float:
        """Seconds with at least one GPU (T_processed)."""
        return self.run_seconds + (now - self.booked_at if self.occupied else 0.0)

    def gpu_seconds_at(self, now: float) -> float:
        """Attained service in GPU-seconds."""
        return self.gpu_seconds + (now - self.booked_at) * self.occupied


class ViewSource(Protocol):
    """The part of the state that a view reads."""

    now: float
    version: int
    cluster: Cluster
    schedule: Schedule
    free: FreeGpus
    waiting: WaitingJobs
    blocked: set[JobId]

    @property
    def unfinished(self) -> Mapping[JobId, object]: ...

    def job_view(self, job: JobId) -> JobView: ...

    def waiting_views(self, version: int) -> Iterator[JobView]: ...


class View:
    """The state as a policy sees it, valid until the next event; a stale view raises.

    Nothing is copied: `jobs` and `waiting` make their values as they are read, and `free` is the
    index that State keeps.
    """

    __slots__ = ("_state", "_version", "now")

    def __init__(self, state: ViewSource) -> None:
        self._state = state
        self._version = state.version
        self.now = state.now

    def _fresh(self) -> ViewSource:
        if self._state.version != self._version:
            raise StaleViewError(
                f"a view of time {self.now} s was read after a later event, at {self._state.now} s"
            )
        return self._state

    @property
    def cluster(self) -> Cluster:
        return self._fresh().cluster

    @property
    def schedule(self) -> Schedule:
        """The target schedule: allocations that are in force or being changed to."""
        return self._fresh().schedule

    @property
    def free(self) -> FreeGpus:
        """GPUs of nodes that are up and assigned to no job.

        A leaving worker may still be on one; the core starts the next worker only after its exit.
        """
        return self._fresh().free

    @property
    def jobs(self) -> Mapping[JobId, JobView]:
        """Every unfinished job, by order of submission."""
        return _Jobs(self._fresh())

    def job(self, job: JobId) -> JobView:
        return self._fresh().job_view(job)

    @property
    def waiting(self) -> Iterator[JobView]:
        """Jobs that could be started, by priority, then submission.

        Jobs of an owner that has reached its GPU limit and blocked jobs are left out.
        """
        return self._fresh().waiting_views(self._version)

    @property
    def n_waiting(self) -> int:
        return len(self._fresh().waiting)

    @property
    def n_blocked(self) -> int:
        """Number of jobs without GPUs that may not be started."""
        return len(self._fresh().blocked)

    def room(self, owner: str) -> int | None:
        """Additional GPUs that this owner's jobs may take (below 0: over its limit); None: any."""
        return self._fresh().waiting.room(owner)

    def limit(self, owner: str) -> int | None:
        """Maximum number of GPUs for all jobs of this owner together; None: no limit."""
        return self._fresh().waiting.limits.get(owner)


class _Jobs(Mapping[JobId, JobView]):
    __slots__ = ("_state", "_version")

    def __init__(self, state: ViewSource) -> None:
        self._state = state
        self._version = state.version

    def _fresh(self) -> ViewSource:
        if self._state.version != self._version:
            raise StaleViewError("the jobs of a view were read after a later event")
        return self._state

    def __getitem__(self, job: JobId) -> JobView:
        return self._fresh().job_view(job)

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._fresh().unfinished)

    def __len__(self) -> int:
        return len(self._fresh().unfinished)

    def __contains__(self, job: object) -> bool:
        return job in self._fresh().unfinished
