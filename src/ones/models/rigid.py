"""Jobs of a fixed size, by rank: who runs, who waits, who is interrupted.

The best in rank goes first; one that does not fit is passed over, and the next is tried
("fit-first"). Costs the jobs that are started and the running ones that somebody outranks,
not all who run and not those who wait: those stand in groups of one size, and when the head
of a group does not fit, nobody behind it does.
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


class Group(NamedTuple):
    """Waiting jobs that stand or fall together, in an order that does not change with time."""

    owner: tuple[str, ...]  # none unless the owner has a limit
    size: int
    cell: int = 0  # whatever else a policy tells apart


def size_of(job: JobView) -> int:
    """As many GPUs as were asked for, within what the job can use."""
    size = max(job.job.requested_gpus, job.job.min_gpus)
    return size if job.max_gpus is None else min(size, job.max_gpus)


def batch_of(job: JobView, gpus: int) -> int:
    """The batch that its user chose, for life; 0: the script's own, which nobody knows yet."""
    batch = job.job.requested_batch or job.base_batch or 0
    if job.description is not None:
        return max(batch, gpus)
    return batch if batch >= gpus and batch == job.job.requested_batch else 0


def allocation_of(job: JobView, gpus: Iterable[Gpu]) -> Allocation:
    """The user's batch on these GPUs."""
    places = tuple(gpus)
    batch = batch_of(job, len(places))
    if not batch:
        return Allocation.as_scripted(places)
    return Allocation.even(places, batch, job.local_limit)


class Runner(NamedTuple):
    """A job that has GPUs, or is to have them."""

    rank: Rank
    job: JobId
    owner: tuple[str, ...]  # none unless the owner has a limit
    size: int
    frees: int  # GPUs that it would leave to others
    pinned: bool = False  # in transition: it stays, whatever its rank


class Line:
    """Who waits, by group and key; and who runs, by rank."""

    def __init__(self) -> None:
        self._groups: dict[Group, list[tuple[Rank, JobId]]] = {}
        self._where: dict[JobId, tuple[Group, Rank]] = {}
        self._running: dict[JobId, Runner] = {}
        self.runners: list[Runner] = []  # best first

    def __len__(self) -> int:
        """Who waits."""
        return len(self._where)

    def wait(self, job: JobId, group: Group, key: Rank) -> None:
        if self._where.get(job) != (group, key):
            self.forget(job)
            self._where[job] = (group, key)
            insort(self._groups.setdefault(group, []), (key, job))

    def run(self, runner: Runner) -> None:
        if self._running.get(runner.job) != runner:
            self.forget(runner.job)
            self._running[runner.job] = runner
            insort(self.runners, runner)

    def forget(self, job: JobId) -> None:
        runner = self._running.pop(job, None)
        if runner is not None:
            del self.runners[bisect_left(self.runners, runner)]
        entry = self._where.pop(job, None)
        if entry is not None:
            group, key = entry
            members = self._groups[group]
            del members[bisect_left(members, (key, job))]
            if not members:
                del self._groups[group]

    def groups(self) -> Iterator[tuple[Group, list[tuple[Rank, JobId]]]]:
        return iter(self._groups.items())


@dataclass(slots=True)
class Turn:
    """What changes."""

    admitted: list[JobId] = field(default_factory=list)  # best first
    evicted: list[JobId] = field(default_factory=list)  # best first
    started: dict[int, int] = field(default_factory=dict)  # size -> how many are admitted
    left: int = 0  # GPUs that nobody gets
    ask_again: bool = False  # somebody in transition is in the way of somebody better


def who_runs(
    line: Line,
    free: int,
    *,
    rank: Callable[[Group, Rank], Rank],
    taking: Callable[[list[Runner]], Callable[[tuple[str, ...], int], bool]],
    most: Mapping[int, int] = MappingProxyType({}),
) -> Turn:
    """Fit-first over all jobs, from the best in rank; of equals, the one that runs.

    `rank` compares heads of groups with runners; `taking` gives what asks for GPUs in an owner's
    name, if these runners are placed anew; `most` says of some sizes how many may be started.
    """
    heads = [
        (rank(group, members[0][0]), group, 0, members)
        for group, members in line.groups()
        if most.get(group.size, 1)
    ]
    if not heads:
        return Turn(left=free)
    heapify(heads)
    # those before the best of the waiting all have room: they have it now
    outranked = line.runners[bisect_right(line.runners, heads[0][0], key=_rank_of) :]
    turn = Turn(left=free + sum(r.frees for r in outranked if not r.pinned))
    take = taking(outranked)
    blocked = False
    for runner in outranked:
        while heads and heads[0][0] < runner.rank:
            blocked |= not _try_head(heads, turn, rank, take, most)
        if runner.pinned:
            turn.ask_again |= blocked
        elif runner.frees <= turn.left and take(runner.owner, runner.size):
            turn.left -= runner.frees
        else:
            turn.evicted.append(runner.job)
    while heads and turn.left:
        _try_head(heads, turn, rank, take, most)
    return turn


_rank_of = attrgetter("rank")


def _try_head(
    heads: list[tuple[Rank, Group, int, list[tuple[Rank, JobId]]]],
    turn: Turn,
    rank: Callable[[Group, Rank], Rank],
    take: Callable[[tuple[str, ...], int], bool],
    most: Mapping[int, int],
) -> bool:
    """Admit the best of those who wait, or give its whole group up."""
    _, group, at, members = heads[0]
    size, so_far = group.size, turn.started.get(group.size, 0)
    if size > turn.left or so_far >= most.get(size, inf) or not take(group.owner, size):
        heappop(heads)
        return False
    turn.left -= size
    turn.started[size] = so_far + 1
    turn.admitted.append(members[at][1])
    if at + 1 < len(members):
        heapreplace(heads, (rank(group, members[at + 1][0]), group, at + 1, members))
    else:
        heappop(heads)
    return True
