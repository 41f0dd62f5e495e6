"""Who shall have which GPU with which batch: the paper's S, as a persistent value.

A `Schedule` never changes; `edit()` gives another one and records which jobs it
touched. So a decision that moves two jobs costs two jobs, however large the
cluster: `diff` and `check` look at the touched ones only. (Inside: a shared base and
a small delta, folded into a new base when it has grown to the square root of it.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isqrt
from typing import NamedTuple, Self

from msgspec.structs import force_setattr

from ones.core.cluster import Gpu
from ones.core.job import JobId
from ones.wire.bounds import Number, Positive, Value


class Worker(NamedTuple):
    """One training process on one GPU, with its share of every optimizer step (b_j^i)."""

    gpu: Gpu
    batch: Number  # samples per optimizer step; 0: the script's own, before it has joined
    micro_steps: Positive = 1  # accumulated in so many parts, where memory is short


class Allocation(Value, frozen=True):
    """The workers of one job, in order of their GPUs."""

    workers: tuple[Worker, ...]

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("an allocation has at least one worker")
        ordered = tuple(sorted(self.workers))
        if ordered != self.workers:
            force_setattr(self, "workers", ordered)

    @classmethod
    def even(cls, gpus: Iterable[Gpu], batch: int, max_local_batch: int | None = None) -> Self:
        """Split a global batch as evenly as integers allow; what exceeds memory is accumulated.

        >>> a = Allocation.even([Gpu("n0", 0), Gpu("n0", 1)], 9, max_local_batch=4)
        >>> [(w.batch, w.micro_steps) for w in a.workers]
        [(5, 2), (4, 2)]
        """
        places = sorted(gpus)
        if batch < len(places):
            raise ValueError(f"a batch of {batch} cannot be split over {len(places)} workers")
        share, rest = divmod(batch, len(places))
        largest = share + (1 if rest else 0)
        parts = 1 if max_local_batch is None else -(-largest // max_local_batch)
        return cls(tuple(Worker(g, share + (i < rest), parts) for i, g in enumerate(places)))

    @classmethod
    def as_scripted(cls, gpus: Iterable[Gpu]) -> Self:
        """With the script's own batch, which is not known before the script joins."""
        return cls(tuple(Worker(g, 0) for g in sorted(gpus)))

    def resolved(self, base_batch: int, max_local_batch: int | None) -> Allocation:
        """With the script's own batch, where none was chosen before the script joined."""
        if self.batch:
            return self
        return Allocation.even(self.gpus, max(base_batch, self.n_gpus), max_local_batch)

    def survivors(self, gpus: frozenset[Gpu], limit: int | None = None) -> Allocation:
        """Those on these GPUs take over the whole global batch, in parts no larger than before.

        Between the two steps of a move the batch stays what it was: only the speed pays.
        """
        left = [w for w in self.workers if w.gpu in gpus]
        if not self.batch:
            return Allocation(tuple(left))
        largest = self.largest_part if limit is None else min(self.largest_part, limit)
        return Allocation.even([w.gpu for w in left], self.batch, largest)

    def without(self, gpus: Iterable[Gpu]) -> Allocation | None:
        """The others, each with its own batch as before; None when nobody is left."""
        gone = set(gpus)
        left = tuple(w for w in self.workers if w.gpu not in gone)
        return Allocation(left) if left else None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(w.gpu for w in self.workers)

    @property
    def n_gpus(self) -> int:
        return len(self.workers)

    @property
    def n_nodes(self) -> int:
        return len({w.gpu.node for w in self.workers})

    @property
    def batch(self) -> int:
        """Global batch (B_j)."""
        return sum(w.batch for w in self.workers)

    @property
    def largest_part(self) -> int:
        """Samples that the fullest GPU has in memory at once."""
        return max(-(-w.batch // w.micro_steps) for w in self.workers)

    @property
    def micro_steps(self) -> int:
        return max(w.micro_steps for w in self.workers)


class Schedule:
    """Job -> allocation, for the jobs that shall run. That no two share a GPU, `check` sees to.

    >>> edit = Schedule().edit()
    >>> edit.put(JobId("a"), Allocation.even([Gpu("n0", 0), Gpu("n0", 1)], 128))
    >>> schedule = edit.done()
    >>> schedule[JobId("a")].batch, len(schedule), schedule.touched
    (128, 1, frozenset({'a'}))
    """

    __slots__ = ("_base", "_delta", "_length", "_root", "touched")

    def __init__(self, allocations: Mapping[JobId, Allocation] | None = None) -> None:
        self._base: dict[JobId, Allocation] = dict(allocations or {})
        self._delta: dict[JobId, Allocation | None] = {}
        self._length = len(self._base)
        self._root = object()
        #: jobs edited since the schedule that this one goes back to
        self.touched: frozenset[JobId] = frozenset()

    def get(self, job: JobId) -> Allocation | None:
        if job in self._delta:
            return self._delta[job]
        return self._base.get(job)

    def __getitem__(self, job: JobId) -> Allocation:
        allocation = self.get(job)
        if allocation is None:
            raise KeyError(job)
        return allocation

    def __contains__(self, job: object) -> bool:
        if job in self._delta:
            return self._delta[job] is not None  # type: ignore[index]
        return job in self._base

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[JobId]:
        """All jobs, by id: costs the whole schedule, so not for hot paths."""
        return iter(sorted(self._all()))

    def items(self) -> Iterator[tuple[JobId, Allocation]]:
        return iter(sorted(self._all().items()))

    def edit(self) -> ScheduleEdit:
        return ScheduleEdit(self)

    def rooted(self) -> Schedule:
        """The same schedule as the one that later edits are counted from."""
        twin = self._like(self._base, self._delta, self._length)
        twin._root, twin.touched = object(), frozenset()
        return twin

    def related(self, other: Schedule) -> bool:
        """Do both go back to one schedule, so that only touched jobs can differ?"""
        return self._root is other._root

    def _all(self) -> dict[JobId, Allocation]:
        merged = self._base.copy()  # a copy is quicker than a comprehension by far
        for job, allocation in self._delta.items():
            if allocation is None:
                merged.pop(job, None)
            else:
                merged[job] = allocation
        return merged

    def _like(
        self, base: dict[JobId, Allocation], delta: dict[JobId, Allocation | None], length: int
    ) -> Schedule:
        twin = Schedule.__new__(Schedule)
        twin._base, twin._delta, twin._length = base, delta, length
        twin._root, twin.touched = self._root, self.touched
        return twin

    def _edited(self, changes: Mapping[JobId, Allocation | None]) -> Schedule:
        length = self._length
        for job, allocation in changes.items():
            length += (allocation is not None) - (job in self)
        delta = {**self._delta, **changes}
        edited = self._like(self._base, delta, length)
        edited.touched = self.touched.union(changes)
        if len(delta) > 16 + isqrt(len(self._base)):
            edited._base, edited._delta = edited._all(), {}
        return edited

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        if self._length != other._length:
            return False
        if self.related(other):
            return all(self.get(job) == other.get(job) for job in self.touched | other.touched)
        return self._all() == other._all()

    __hash__ = None  # type: ignore[assignment]  # compared, never a key

    def __repr__(self) -> str:
        return f"Schedule({dict(self.items())!r})"


class ScheduleEdit:
    """Changes to a schedule, until `done()` makes them one."""

    __slots__ = ("_before", "_changes")

    def __init__(self, before: Schedule) -> None:
        self._before = before
        self._changes: dict[JobId, Allocation | None] = {}

    def put(self, job: JobId, allocation: Allocation) -> None:
        self._changes[job] = allocation

    def drop(self, job: JobId) -> None:
        self._changes[job] = None

    def set(self, job: JobId, allocation: Allocation | None) -> None:
        self._changes[job] = allocation

    def get(self, job: JobId) -> Allocation | None:
        return self._changes[job] if job in self._changes else self._before.get(job)

    def done(self) -> Schedule:
        """The edited schedule; the very same one if nothing differs."""
        changes = {j: a for j, a in self._changes.items() if self._before.get(j) != a}
        return self._before._edited(changes) if changes else self._before
