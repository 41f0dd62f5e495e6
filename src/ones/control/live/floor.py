"""What is there while jobs run: their processes, the orders that wait for them, and the means to
act. It belongs to the brain's thread; who acts on it are the modules beside it.

`orders` carries out what a plan says, `departures` sorts out why processes ended, `watch`
loses patience, `hearing` takes what workers say. What they tell the brain goes out by `say`.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ones.control import logs
from ones.control.clock import Clock
from ones.control.live.jobs import LAST, NOW, LiveJob, LiveWorker, job_of
from ones.control.live.mailbox import Mailbox
from ones.control.live.patience import Patience
from ones.control.live.suspicion import Suspicion
from ones.control.recorder import Recorder
from ones.control.store import Done, Operation, Store
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.brain import Brain
from ones.core.cluster import Gpu, NodeId
from ones.core.job import Generation, JobId
from ones.core.state import State
from ones.errors import described
from ones.launchers import Launcher

Stimulus = Callable[[], None]


class Inbox(Protocol):
    """Stimuli from other threads, in the order in which they were put; as `queue.SimpleQueue`."""

    def put(self, stimulus: Stimulus, /) -> None: ...

    def get(self, *, timeout: float | None = None) -> Stimulus:
        """Raises `queue.Empty` if none came in time."""
        ...

    def empty(self) -> bool: ...


log = logs.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the engine works with."""

    store: Store
    recorder: Recorder
    launcher: Launcher
    clock: Clock
    tokens: JobTokens
    url: str  # where workers reach the service
    checkpoints: str  # of all jobs: a path or URL that fsspec understands
    authority: str = ""  # PEM of our certificate, if we have one
    patience: Patience = field(default_factory=Patience)
    group_size: int = 0  # see `grouping`
    inbox: Inbox = field(default_factory=queue.SimpleQueue[Stimulus])


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An event, what must be written beside it, and who waits for that to be safe."""

    event: ev.Event
    operations: Sequence[Operation] = ()
    done: Done | None = None


class Floor:
    """Jobs that have not ended, or whose workers have not left."""

    def __init__(self, brain: Brain, around: Surroundings) -> None:
        self._brain = brain
        self.store, self.recorder = around.store, around.recorder
        self.launcher, self.clock, self.tokens = around.launcher, around.clock, around.tokens
        self.url, self.checkpoints = around.url, around.checkpoints
        self.authority = around.authority
        self.patience = around.patience
        self.group_size = around.group_size
        self.jobs: dict[JobId, LiveJob] = {}
        self.mailbox = Mailbox()
        self.last_word: dict[str, float] = {}  # launch -> when it called last; by the server
        self.drained: set[NodeId] = set()  # by operators; `asides` sees to these three
        self.asides: dict[Gpu, dict[str, str]] = {}  # GPUs that are not used: cause, in words
        self.suspicion = Suspicion()
        self.winding_down = False  # nobody new comes
        self.contained = 0  # exceptions that ended nothing but their job
        self._inbox = around.inbox
        self.out: deque[Outgoing] = deque()  # what the brain has yet to hear

    @property
    def state(self) -> State:
        """Of the brain, which replaces it after a contained failure."""
        return self._brain.state

    def post(self, stimulus: Stimulus, job: JobId | None = None) -> None:
        """From any thread: to be run in the brain's thread, when all events have gone out. If it
        raises, the job that it is about fails."""
        self._inbox.put(partial(self.guarded, stimulus, job))

    def guarded(self, stimulus: Stimulus, job: JobId | None) -> None:
        try:
            stimulus()
        except Exception as problem:
            self.contain(job, problem)
            if job is not None:
                self.post(self.free_missing)

    def free_missing(self) -> None:
        """GPUs that a job should be on according to the log, and where no process of it is:
        report the missing processes, so that their GPUs are free again."""
        if self.winding_down:
            return  # no worker is started any more; the next service starts them
        for gpu, occupant in list(self.state.occupants.items()):
            job = self.jobs.get(occupant.job)
            if job is not None and (
                job.on(gpu) is not None or any(gpu in worker.gpus for worker in job.quiet)
            ):
                continue
            if job is None or job.ended:
                self.say(ev.WorkerLeft(NOW, occupant.job, LAST, gpu))
            else:
                why = "its process was not there when the service looked for it"
                self.say(ev.WorkerLost(NOW, occupant.job, Generation(occupant.plan), gpu, why))

    def say(
        self, event: ev.Event, operations: Sequence[Operation] = (), done: Done | None = None
    ) -> None:
        """In the brain's thread: an event, what is written with it, and who waits for that."""
        self.out.append(Outgoing(event, operations, done))

    def say_first(self, event: ev.Event) -> None:
        """The very next event: word of a failure belongs right behind what caused it."""
        self.out.appendleft(Outgoing(event))

    def contain(self, job: JobId | None, problem: Exception) -> None:
        """Something raised outside the scheduler: its job fails, everything else goes on."""
        log.error("contained", job=job, error=described(problem), exc_info=problem)
        self.contained += 1
        record = self.state.records.get(job) if job is not None else None
        if record is None or record.ending is not None:
            return
        self.say(
            ev.EntryQuarantined(
                at=NOW, entry=0, kind="a step of the service", reason=described(problem), job=job
            )
        )

    def find(self, launch: str) -> tuple[LiveJob | None, LiveWorker | None]:
        job = self.jobs.get(job_of(launch))
        return job, job.workers.get(launch) if job else None

    def condemn(self, worker: LiveWorker, why: str) -> None:
        """We kill it ourselves, which is a loss."""
        worker.condemned = why
        self.launcher.stop(worker.launch, 0.0)
