"""The live engine's own data of a job: its processes and the progress of its order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from ones.control.submission import Submission
from ones.core.cluster import Gpu, NodeId
from ones.core.job import Generation, JobId

#: placeholder time of an event; the loop sets the real one when it takes the event
NOW = 0.0
#: generation of a worker after the end of its job: newer than every plan
LAST = Generation(2**53)


@dataclass(slots=True)
class OrderProgress:
    """Progress of a job's order. `deadline`: when the engine gives up waiting for it."""

    plan: int
    deadline: float = inf
    published: bool = False  # the workers have their `Switch`
    late: bool = False  # `State` has no order: the first `Switch` of a worker that joined late


@dataclass(slots=True)
class LiveWorker:
    """One process. A fixed-size job has one for all its GPUs."""

    launch: str
    gpus: tuple[Gpu, ...]
    plan: int  # the plan that launched it
    joined: bool = False
    leaving: bool = False  # was ordered to leave, or has reported that it leaves
    parted: bool = False  # no report is expected: it reported that it leaves, or never trained
    heard: int = 0  # number of the last report that was handled
    safe: int = 0  # number of the last report that is on disk and acknowledged
    done: bool = False  # has reported that the whole job is done
    alive: bool = True
    since: float = inf  # when it was launched; not known after a restart of the controller
    condemned: str = ""  # why the engine killed it; it then counts as lost

    @property
    def name(self) -> str:
        return str(self.gpus[0])


@dataclass(slots=True)
class LiveJob:
    id: JobId
    submission: Submission
    workers: dict[str, LiveWorker] = field(default_factory=dict)  # by launch
    progress: OrderProgress | None = None  # of the order that `State` has in flight, or of the end
    end_reported: bool = False  # its `JobEnded` was emitted
    quiet: list[LiveWorker] = field(default_factory=list)  # exited, as if the job were done
    quiet_since: float = inf  # when the first worker was done
    join_seconds: float = 0.0  # the longest time that one of its workers took to join
    overdue: bool = False  # exceeded its run time and was ordered to end
    store: str = ""  # address of the rendezvous store of its workers

    def on(self, gpu: Gpu) -> LiveWorker | None:
        for worker in self.workers.values():
            if gpu in worker.gpus:
                return worker
        return None

    def present(self) -> set[Gpu]:
        return {gpu for worker in self.workers.values() for gpu in worker.gpus}

    def published(self, plan: int) -> bool:
        return self.progress is not None and self.progress.plan == plan and self.progress.published


def launch_id(job: str, plan: int, gpus: Iterable[Gpu]) -> str:
    """The id of a launch. It is unique, because only one plan puts a job on a GPU at a time.

    >>> launch_id("bert-7", 12, [Gpu(NodeId("n0"), 3)])
    'bert-7~12~n0.3'
    """
    first = next(iter(gpus))
    return f"{job}~{plan}~{first.node}.{first.index}"


def job_of(launch: str) -> JobId:
    """The job of a launch id.

    >>> job_of("bert-7~12~n0.3")
    'bert-7'
    """
    return JobId(launch.split("~", maxsplit=1)[0])


def plan_of(launch: str) -> int:
    return int(launch.split("~")[1])


def gpu_of(slot: str) -> Gpu:
    """The GPU of a slot name.

    >>> gpu_of("n0/3")
    Gpu(node='n0', index=3)
    """
    node, _, index = slot.rpartition("/")
    return Gpu(NodeId(node), int(index))
