"""What a policy may see: a window on the state, and frozen values behind it."""

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
    """All that a policy may know of a job: a value, safe to keep. Its true end is not in it."""

    job: Job
    number: int  # order of submission
    priority: float
    phase: Phase
    pinned: bool  # in transition, or not elastic: its allocation must be left as `wanted`
    wanted: Allocation | None
    held: Allocation | None
    description: Description | None
    progress: Progress
    profile: Mapping[Configuration, StepTime]
    local_limit: int | None  # samples that may be put into one GPU at once
    switch_cost: SwitchCost
    booked_at: float  # `queue_seconds` and `run_seconds` are booked up to here
    queue_seconds: float
    run_seconds: float
    gpu_seconds: float
    occupied: int  # GPUs that its processes are on
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
        """Passes over the data so far, the present one by its part."""
        if self.description is None:
            return 0.0
        return self.progress.samples / self.description.dataset_size

    @property
    def base_batch(self) -> int | None:
        """The batch that the learning rate was tuned for, as far as anybody has said."""
        return self.description.base_batch if self.description else self.job.requested_batch

    @property
    def max_gpus(self) -> int | None:
        return self.job.max_gpus

    def run_seconds_at(self, now: float) -> float:
        """T_processed: seconds with at least one GPU."""
        return self.run_seconds + (now - self.booked_at if self.occupied else 0.0)

    def gpu_seconds_at(self, now: float) -> float:
        """Attained service: seconds times GPUs."""
        return self.gpu_seconds + (now - self.booked_at) * self.occupied


class Behind(Protocol):
    """What a window opens on: the tables, of which a policy sees no more than this."""

    now: float
    version: int
    cluster: Cluster
    schedule: Schedule
    free: FreeGpus
    waiting: WaitingJobs

    @property
    def unfinished(self) -> Mapping[JobId, object]: ...

    def job_view(self, job: JobId) -> JobView: ...

    def waiting_views(self, version: int) -> Iterator[JobView]: ...


class View:
    """A policy's world at one instant, valid until the next event; a stale one raises.

    Nothing in it is copied: `jobs` and `waiting` make their values as they are read, and
    `free` is the index that State keeps.
    """

    __slots__ = ("_state", "_version", "now")

    def __init__(self, state: Behind) -> None:
        self._state = state
        self._version = state.version
        self.now = state.now

    def _fresh(self) -> Behind:
        if self._state.version != self._version:
            raise StaleViewError(f"a view of {self.now} s was kept until {self._state.now} s")
        return self._state

    @property
    def cluster(self) -> Cluster:
        return self._fresh().cluster

    @property
    def schedule(self) -> Schedule:
        """What is wanted: in force, or on its way."""
        return self._fresh().schedule

    @property
    def free(self) -> FreeGpus:
        """GPUs of nodes that are up which no job is to have. Some may still be being left:
        the core sees to it that nobody comes before the other is gone."""
        return self._fresh().free

    @property
    def jobs(self) -> Mapping[JobId, JobView]:
        """Every unfinished job, by order of submission."""
        return _Jobs(self._fresh())

    def job(self, job: JobId) -> JobView:
        return self._fresh().job_view(job)

    @property
    def waiting(self) -> Iterator[JobView]:
        """Jobs that could be started: by priority, then submission; without those whose owner
        has no room left."""
        return self._fresh().waiting_views(self._version)

    @property
    def n_waiting(self) -> int:
        return len(self._fresh().waiting)

    def room(self, owner: str) -> int | None:
        """GPUs that this owner's jobs may take in addition (below 0: have too many); None: any."""
        return self._fresh().waiting.room(owner)


class _Jobs(Mapping[JobId, JobView]):
    __slots__ = ("_state", "_version")

    def __init__(self, state: Behind) -> None:
        self._state = state
        self._version = state.version

    def _fresh(self) -> Behind:
        if self._state.version != self._version:
            raise StaleViewError("the jobs of a view were kept beyond its event")
        return self._state

    def __getitem__(self, job: JobId) -> JobView:
        return self._fresh().job_view(job)

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._fresh().unfinished)

    def __len__(self) -> int:
        return len(self._fresh().unfinished)

    def __contains__(self, job: object) -> bool:
        return job in self._fresh().unfinished
