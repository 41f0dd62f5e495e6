"""A job as the live engine sees it: its processes, and the order that is being carried out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from ones.control.submission import Submission
from ones.core.cluster import Gpu, NodeId
from ones.core.job import Description, Generation, JobId
from ones.core.schedule import Allocation

#: the time of an event that has yet to be stamped, which is when the loop takes it
NOW = 0.0
#: of a worker whose job has ended: nothing but its GPU is left of it, and no plan is newer
LAST = Generation(2**53)


class Kind(StrEnum):
    START = "start"
    RESCALE = "rescale"
    STOP = "stop"


@dataclass(slots=True)
class Pending:
    """An order on its way. `deadline` is when patience ends; what then depends on the kind."""

    kind: Kind
    plan: int
    allocation: Allocation | None = None
    published: bool = False  # the workers have their `Switch`
    ready: set[Gpu] = field(default_factory=set)
    deadline: float = inf

    def needs(self, gpus: Iterable[Gpu]) -> bool:
        """Whether it cannot come together without a worker there."""
        return self.allocation is not None and not set(self.allocation.gpus).isdisjoint(gpus)


@dataclass(slots=True)
class LiveWorker:
    """One process. A fixed-size job has one for all its GPUs."""

    launch: str
    gpus: tuple[Gpu, ...]
    plan: int  # that launched it
    joined: bool = False
    leaving: bool = False  # told to go, or has said that it goes
    parted: bool = False  # nothing is to be heard any more: it said that it goes, or never trained
    heard: int = 0  # number of its last report that was taken
    safe: int = 0  # and of the last one that is on disk: so far they are acknowledged
    done: bool = False  # has said that the whole job is
    alive: bool = True
    since: float = inf  # when we launched it; of an adopted one nobody knows
    condemned: str = ""  # why we killed it ourselves, which is a loss

    @property
    def name(self) -> str:
        return str(self.gpus[0])


@dataclass(slots=True)
class LiveJob:
    id: JobId
    submission: Submission
    generation: Generation = Generation(0)  # a tuple, and so a value
    description: Description | None = None
    workers: dict[str, LiveWorker] = field(default_factory=dict)  # by launch
    pending: Pending | None = None
    elastic: bool = True
    ended: bool = False
    quiet: list[LiveWorker] = field(default_factory=list)  # exited, as if the job were done
    quiet_since: float = inf  # when the first worker was done
    join_seconds: float = 0.0  # the longest that one of its workers took to join
    overdue: bool = False  # ran longer than it may, and was told to end
    store: str = ""  # where its workers on several nodes meet

    def on(self, gpu: Gpu) -> LiveWorker | None:
        for worker in self.workers.values():
            if gpu in worker.gpus:
                return worker
        return None

    def present(self) -> set[Gpu]:
        return {gpu for worker in self.workers.values() for gpu in worker.gpus}

    def spelled_out(self, allocation: Allocation) -> Allocation:
        """With the script's own batch where the plan does not say one."""
        if allocation.batch or self.description is None:
            return allocation
        batch = max(self.description.base_batch, allocation.n_gpus)
        return Allocation.even(allocation.gpus, batch, self.description.max_local_batch)


def launch_id(job: str, plan: int, gpus: Iterable[Gpu]) -> str:
    """One launch and no other: a job has one plan that puts it on a GPU at a time.

    >>> launch_id("bert-7", 12, [Gpu(NodeId("n0"), 3)])
    'bert-7~12~n0.3'
    """
    first = next(iter(gpus))
    return f"{job}~{plan}~{first.node}.{first.index}"


def job_of(launch: str) -> JobId:
    """
    >>> job_of("bert-7~12~n0.3")
    'bert-7'
    """
    return JobId(launch.split("~", maxsplit=1)[0])


def plan_of(launch: str) -> int:
    return int(launch.split("~")[1])


def gpu_of(slot: str) -> Gpu:
    """
    >>> gpu_of("n0/3")
    Gpu(node='n0', index=3)
    """
    node, _, index = slot.rpartition("/")
    return Gpu(NodeId(node), int(index))
