"""State of the live engine beside the scheduler's `State`: processes, mailbox, events to deliver.

It belongs to the scheduler's thread. The classes beside it act on it: `ActionRunner` carries out
plans, `ExitHandler` handles processes that end, `ReportHandler` worker reports, `DeadlineChecker`
delays, `NodeEvents` and `Cordons` nodes and GPUs.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ones.control import logs
from ones.control.clock import Clock
from ones.control.live.jobs import LAST, NOW, LiveJob, LiveWorker, job_of
from ones.control.live.mailbox import Mailbox
from ones.control.live.timeouts import Timeouts
from ones.control.persistence import ChangedJobs, Done, LiveStore
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core import reasons
from ones.core.cluster import NodeId
from ones.core.engine import Delivered
from ones.core.job import Generation, JobId
from ones.core.record import InFlight, JobRecord
from ones.core.scheduler import Scheduler
from ones.core.state import State
from ones.errors import described
from ones.launchers import Launcher
from ones.wire import Reports
from ones.wire.messages import Report

Task = Callable[[], None]

log = logs.logger(__name__)


class Inbox(Protocol):
    """Tasks from other threads, in the order in which they were put; as `queue.SimpleQueue`."""

    def put(self, task: Task, /) -> None: ...

    def get(self, *, timeout: float | None = None) -> Task:
        """Raises `queue.Empty` if none came in time."""
        ...

    def empty(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDeps:
    """The components and settings that the live engine uses."""

    store: LiveStore
    recorder: ChangedJobs
    launcher: Launcher
    clock: Clock
    tokens: JobTokens
    url: str  # where workers reach the service
    checkpoints: str  # of all jobs: a path or URL that fsspec understands
    authority: str = ""  # PEM of the service's certificate, if it has one
    timeouts: Timeouts = field(default_factory=Timeouts)
    group_size: int = 0  # see `gpu_groups`
    inbox: Inbox = field(default_factory=queue.SimpleQueue[Task])
    #: called in the scheduler's thread with each new report, before it is handled
    on_report: Callable[[Reports, Report], None] = lambda message, report: None
    #: the Unix user of an owner, if jobs run as users; for jobs that were submitted without one
    unix_of: Callable[[str], str] = lambda owner: ""
    #: whether the `Switch` of this plan may be sent already, now that its workers have joined
    may_switch: Callable[[int], bool] = lambda plan: True


class LiveState:
    def __init__(self, scheduler: Scheduler, deps: EngineDeps) -> None:
        self._scheduler, self.deps = scheduler, deps
        self.store, self.launcher, self.clock = deps.store, deps.launcher, deps.clock
        self.timeouts = deps.timeouts
        #: jobs that have not ended or still have workers
        self.jobs: dict[JobId, LiveJob] = {}
        self.mailbox = Mailbox()
        self.last_call: dict[str, float] = {}  # launch -> time of its last call; by the server
        self.winding_down = False  # no worker is started any more
        self.gone_nodes: set[NodeId] = set()  # lost while no controller ran; `NodeDown` follows
        self.contained = 0  # exceptions that ended only their job
        self.inbox = deps.inbox
        self.out: deque[Delivered] = deque()  # events that the scheduler has yet to get
        self.next_tasks: deque[Task] = deque()  # run before the inbox, when `out` is empty

    @property
    def state(self) -> State:
        """The scheduler's state; the scheduler replaces it after a contained failure."""
        return self._scheduler.state

    def record(self, job: LiveJob) -> JobRecord | None:
        return self.state.records.get(job.id)

    def order(self, job: LiveJob) -> InFlight | None:
        """The order that is being carried out for the job."""
        record = self.state.records.get(job.id)
        return record.in_flight if record is not None else None

    def is_elastic(self, job: LiveJob) -> bool:
        record = self.state.records.get(job.id)
        return record.job.elastic if record is not None else job.submission.elastic is not False

    def find(self, launch: str) -> tuple[LiveJob | None, LiveWorker | None]:
        job = self.jobs.get(job_of(launch))
        return job, job.workers.get(launch) if job else None

    # tasks

    def post(self, task: Task, job: JobId | None = None) -> None:
        """From any thread: run the task in the scheduler's thread, after all events are delivered.
        If the task raises, `job` fails."""
        self.inbox.put(partial(self.guarded, task, job))

    def guarded(self, task: Task, job: JobId | None) -> None:
        try:
            task()
        except Exception as problem:
            self.contain(job, problem)
            if job is not None:
                self.post(self.free_missing)

    # events

    def emit(
        self, event: ev.Event, operations: Sequence[Any] = (), done: Done | None = None
    ) -> None:
        """Queue an event for the scheduler. To be called in the scheduler's thread.

        `operations` are written in the same transaction; `done` is called after the commit.
        """
        self.out.append(Delivered(event, operations, done))

    def emit_first(self, event: ev.Event) -> None:
        """Queue an event before all others, so that a failure directly follows its cause."""
        self.out.appendleft(Delivered(event))

    def contain(self, job: JobId | None, problem: Exception) -> None:
        """Handle an exception outside the scheduler: its job fails, everything else continues."""
        log.error("contained", job=job, error=described(problem), exc_info=problem)
        self.contained += 1
        record = self.state.records.get(job) if job is not None else None
        if record is None or record.ending is not None:
            return
        self.emit(
            ev.EntryQuarantined(
                at=NOW, entry=0, kind="a step of the service", reason=described(problem), job=job
            )
        )

    def free_missing(self) -> None:
        """Release the GPUs that have a worker by the log, but no process."""
        if self.winding_down:
            return  # the next controller starts them
        for gpu, occupant in list(self.state.occupants.items()):
            if gpu.node in self.gone_nodes:
                continue  # freed with its node
            job = self.jobs.get(occupant.job)
            if job is not None and (
                job.on(gpu) is not None or any(gpu in worker.gpus for worker in job.quiet)
            ):
                continue
            if job is None or job.end_reported:
                self.emit(ev.WorkerLeft(NOW, occupant.job, LAST, gpu))
            else:
                generation = Generation(occupant.plan)
                self.emit(ev.WorkerLost(NOW, occupant.job, generation, gpu, reasons.NOT_FOUND))

    # workers

    def newest_generation(self, job: LiveJob, worker: LiveWorker) -> Generation:
        """A generation that is not older than the one that put the worker on its GPU."""
        record = self.state.records.get(job.id)
        mine = Generation(worker.plan)
        return max(record.generation, mine) if record is not None else mine

    def stop(self, worker: LiveWorker) -> None:
        self.launcher.stop(worker.launch, self.timeouts.grace_seconds)

    def condemn(self, worker: LiveWorker, why: str) -> None:
        """Kill a worker, which counts as a loss."""
        worker.condemned = why
        self.launcher.stop(worker.launch, 0.0)

    def forget_worker(self, job: LiveJob, worker: LiveWorker) -> None:
        """Remove a worker after its process has ended."""
        del job.workers[worker.launch]
        worker.alive = False
        self.mailbox.drop(worker.launch)
        self.last_call.pop(worker.launch, None)
