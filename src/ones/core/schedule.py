"""Allocations (GPUs and batch of a job) and the schedule of all jobs (the paper's S).

A `Schedule` never changes: `edit()` returns another one that records which jobs it touched. `diff`
and `check` read touched jobs only, so the cost of a decision does not depend on the cluster's size.
(Inside: a shared base and a small delta, merged into a new base at the square root of its size.)
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
    micro_steps: Positive = 1  # parts in which gradients are accumulated if memory is short


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
        """Split a global batch as evenly as integers allow, in micro-steps that fit into memory.

        >>> a = Allocation.even([Gpu("n0", 0), Gpu("n0", 1)], 9, max_local_batch=4)
        >>> [(w.batch, w.micro_steps) for w in a.workers]
        [(5, 2), (4, 2)]
        """
        ordered = sorted(gpus)
        if batch < len(ordered):
            raise ValueError(f"a batch of {batch} cannot be split over {len(ordered)} workers")
        share, rest = divmod(batch, len(ordered))
        largest = share + (1 if rest else 0)
        parts = 1 if max_local_batch is None else -(-largest // max_local_batch)
        return cls(tuple(Worker(g, share + (i < rest), parts) for i, g in enumerate(ordered)))

    @classmethod
    def as_scripted(cls, gpus: Iterable[Gpu]) -> Self:
        """An allocation with the script's own batch, which is not known before the script joins."""
        return cls(tuple(Worker(g, 0) for g in sorted(gpus)))

    def resolved(self, base_batch: int, max_local_batch: int | None) -> Allocation:
        """The allocation with the script's own batch filled in if no batch was chosen."""
        if self.batch:
            return self
        return Allocation.even(self.gpus, max(base_batch, self.n_gpus), max_local_batch)

    def with_batch(self, batch: int) -> Allocation:
        """The same workers with another global batch, split evenly in as many parts as before."""
        split = Allocation.even(self.gpus, batch)
        parts = self.micro_steps
        return Allocation(tuple(worker._replace(micro_steps=parts) for worker in split.workers))

    def survivors(self, gpus: frozenset[Gpu], limit: int | None = None) -> Allocation:
        """The workers on these GPUs with the whole global batch, in parts no larger than before.

        So between the two steps of a move the batch stays the same; only the speed drops.
        """
        left = [w for w in self.workers if w.gpu in gpus]
        if not self.batch:
            return Allocation(tuple(left))
        largest = self.largest_part if limit is None else min(self.largest_part, limit)
        return Allocation.even([w.gpu for w in left], self.batch, largest)

    def without(self, gpus: Iterable[Gpu]) -> Allocation | None:
        """The other workers, each with its batch as before; None if no worker is left."""
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
        """Maximum number of samples that one GPU has in memory at once."""
        return max(-(-w.batch // w.micro_steps) for w in self.workers)

    @property
    def micro_steps(self) -> int:
        return max(w.micro_steps for w in self.workers)


class Schedule:
    """Allocations by job, for the jobs that should run. `check` ensures that no two share a GPU.

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
        #: jobs edited since the common root
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
        """All jobs, by id. Costs the whole schedule: not for hot paths."""
        return iter(sorted(self._all()))

    def items(self) -> Iterator[tuple[JobId, Allocation]]:
        return iter(sorted(self._all().items()))

    def edit(self) -> ScheduleEdit:
        return ScheduleEdit(self)

    def rooted(self) -> Schedule:
        """The same schedule as a new root: later edits are counted from it."""
        copy = self._like(self._base, self._delta, self._length)
        copy._root, copy.touched = object(), frozenset()
        return copy

    def related(self, other: Schedule) -> bool:
        """Whether both have the same root, so that only touched jobs can differ."""
        return self._root is other._root

    def _all(self) -> dict[JobId, Allocation]:
        merged = self._base.copy()  # much faster than a comprehension
        for job, allocation in self._delta.items():
            if allocation is None:
                merged.pop(job, None)
            else:
                merged[job] = allocation
        return merged

    def _like(
        self, base: dict[JobId, Allocation], delta: dict[JobId, Allocation | None], length: int
    ) -> Schedule:
        copy = Schedule.__new__(Schedule)
        copy._base, copy._delta, copy._length = base, delta, length
        copy._root, copy.touched = self._root, self.touched
        return copy

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
    """Changes to a schedule; `done()` returns the changed schedule."""

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
        """The edited schedule; the same object if nothing differs."""
        changes = {j: a for j, a in self._changes.items() if self._before.get(j) != a}
        return self._before._edited(changes) if changes else self._before
