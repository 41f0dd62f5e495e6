"""Jobs of a fixed size in order of rank: which of them run, wait, or are interrupted.

The best rank goes first; a job that does not fit is skipped, and the next is tried ("fit-first").
The cost is that of the jobs started and of the running jobs outranked, not of all that run or wait:
waiting jobs are in groups of one size, and when the first of a group does not fit, none does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from ones.core.cluster import Gpu
from ones.core.job import JobId
from ones.core.schedule import Allocation
from ones.core.view import JobView

#: smaller goes first
Rank = tuple[float, ...]


class WaitingGroup(NamedTuple):
    """Waiting jobs of one size and owner. Their order does not change with time."""

    owner: tuple[str, ...]  # () unless the owner has a limit
    size: int
    cell: int | tuple[str, int] = 0  # another distinction, made by the policy


def size_of(job: JobView) -> int:
    """The requested GPUs, within the limits of the job."""
    size = max(job.job.requested_gpus, job.job.min_gpus)
    return size if job.max_gpus is None else min(size, job.max_gpus)


def batch_of(job: JobView, gpus: int) -> int:
    """The batch that its user chose; 0: the script's own, which is not known yet."""
    batch = job.job.requested_batch or job.base_batch or 0
    if job.description is not None:
        return max(batch, gpus)
    return batch if batch >= gpus and batch == job.job.requested_batch else 0


def allocation_of(job: JobView, gpus: Iterable[Gpu]) -> Allocation:
    """The user's batch on these GPUs."""
    gpus = tuple(gpus)
    batch = batch_of(job, len(gpus))
    if not batch:
        return Allocation.as_scripted(gpus)
    return Allocation.even(gpus, batch, job.local_limit)


class RunningJob(NamedTuple):
    """A job that has GPUs, or is to have them."""

    rank: Rank
    job: JobId
    owner: tuple[str, ...]  # () unless the owner has a limit
    size: int
    frees: int  # GPUs that it would leave to others
    pinned: bool = False  # being changed: it stays, whatever its rank


class JobQueue:
    """Waiting jobs by group and key, and running jobs by rank."""

    def __init__(self) -> None:
        self._groups: dict[WaitingGroup, list[tuple[Rank, JobId]]] = {}
        self._waiting: dict[JobId, tuple[WaitingGroup, Rank]] = {}
        self._running: dict[JobId, RunningJob] = {}
        self.running: list[RunningJob] = []  # best first

    def __len__(self) -> int:
        """The number of waiting jobs."""
        return len(self._waiting)

    def add_waiting(self, job: JobId, group: WaitingGroup, key: Rank) -> None:
        if self._waiting.get(job) != (group, key):
            self.remove(job)
            self._waiting[job] = (group, key)
            insort(self._groups.setdefault(group, []), (key, job))

    def add_running(self, job: RunningJob) -> None:
        if self._running.get(job.job) != job:
            self.remove(job.job)
            self._running[job.job] = job
            insort(self.running, job)

    def remove(self, job: JobId) -> None:
        running = self._running.pop(job, None)
        if running is not None:
            del self.running[bisect_left(self.running, running)]
        waiting = self._waiting.pop(job, None)
        if waiting is not None:
            group, key = waiting
            members = self._groups[group]
            del members[bisect_left(members, (key, job))]
            if not members:
                del self._groups[group]

    def groups(self) -> Iterator[tuple[WaitingGroup, list[tuple[Rank, JobId]]]]:
        return iter(self._groups.items())


@dataclass(slots=True)
class Selection:
    """The jobs to start and to interrupt."""

    admitted: list[JobId] = field(default_factory=list)  # best first
    evicted: list[JobId] = field(default_factory=list)  # best first
    started: dict[int, int] = field(default_factory=dict)  # size -> number admitted
    left: int = 0  # free GPUs
    ask_again: bool = False  # a pinned job blocks a better one


_Head = tuple[Rank, WaitingGroup, int, list[tuple[Rank, JobId]]]


def select_jobs(
    queue: JobQueue,
    free: int,
    *,
    rank: Callable[[WaitingGroup, Rank], Rank],
    quota: Callable[[list[RunningJob]], Callable[[tuple[str, ...], int], bool]],
    most: Mapping[int, int] = MappingProxyType({}),
) -> Selection:
    """Fit-first over all jobs, from the best rank; of equals, the one that runs.

    `rank` makes keys of groups comparable with running jobs; `quota` returns the function that
    takes GPUs for an owner, if the given jobs are placed again; `most` limits the number of jobs
    of some sizes that may be started.
    """
    heads: list[_Head] = [
        (rank(group, members[0][0]), group, 0, members)
        for group, members in queue.groups()
        if most.get(group.size, 1)
    ]
    if not heads:
        return Selection(left=free)
    heapify(heads)
    # running jobs before the best waiting one keep their GPUs
    outranked = queue.running[bisect_right(queue.running, heads[0][0], key=attrgetter("rank")) :]
    selection = Selection(left=free + sum(r.frees for r in outranked if not r.pinned))
    take = quota(outranked)
    blocked = False
    for running in outranked:
        while heads and heads[0][0] < running.rank:
            blocked |= not _try_head(heads, selection, rank, take, most)
        if running.pinned:
            selection.ask_again |= blocked
        elif running.frees <= selection.left and take(running.owner, running.size):
            selection.left -= running.frees
        else:
            selection.evicted.append(running.job)
    while heads and selection.left:
        _try_head(heads, selection, rank, take, most)
    return selection


def _try_head(
    heads: list[_Head],
    selection: Selection,
    rank: Callable[[WaitingGroup, Rank], Rank],
    take: Callable[[tuple[str, ...], int], bool],
    most: Mapping[int, int],
) -> bool:
    """Admits the best waiting job; False: it does not fit, and its whole group is skipped."""
    _, group, index, members = heads[0]
    size, started = group.size, selection.started.get(group.size, 0)
    if size > selection.left or started >= most.get(size, inf) or not take(group.owner, size):
        heappop(heads)
        return False
    selection.left -= size
    selection.started[size] = started + 1
    selection.admitted.append(members[index][1])
    if index + 1 < len(members):
        heapreplace(heads, (rank(group, members[index + 1][0]), group, index + 1, members))
    else:
        heappop(heads)
    return True
