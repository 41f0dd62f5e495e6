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
from typing import Protocol

from ones.control.clock import Clock
from ones.control.live.jobs import LiveJob, LiveWorker
from ones.control.live.mailbox import Mailbox
from ones.control.live.patience import Patience
from ones.control.live.suspicion import Suspicion
from ones.control.recorder import Recorder
from ones.control.store import Done, Operation, Store
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.job import JobId
from ones.core.state import State
from ones.launchers import Launcher

Stimulus = Callable[[], None]


class Inbox(Protocol):
    """Stimuli from other threads, in the order in which they were put; as `queue.SimpleQueue`."""

    def put(self, stimulus: Stimulus, /) -> None: ...

    def get(self, *, timeout: float | None = None) -> Stimulus:
        """Raises `queue.Empty` if none came in time."""
        ...

    def empty(self) -> bool: ...


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

    def __init__(self, state: State, around: Surroundings) -> None:
        self.state = state
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
        self._inbox = around.inbox
        self.out: deque[Outgoing] = deque()  # what the brain has yet to hear

    def post(self, stimulus: Stimulus) -> None:
        """From any thread: to be run in the brain's thread, when all events have gone out."""
        self._inbox.put(stimulus)

    def say(
        self, event: ev.Event, operations: Sequence[Operation] = (), done: Done | None = None
    ) -> None:
        """In the brain's thread: an event, what is written with it, and who waits for that."""
        self.out.append(Outgoing(event, operations, done))

    def find(self, launch: str) -> tuple[LiveJob | None, LiveWorker | None]:
        job = self.jobs.get(JobId(launch.split("~", maxsplit=1)[0]))
        return job, job.workers.get(launch) if job else None

    def condemn(self, worker: LiveWorker, why: str) -> None:
        """We kill it ourselves, which is a loss."""
        worker.condemned = why
        self.launcher.stop(worker.launch, 0.0)
