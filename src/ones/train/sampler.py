"""The samples of each worker: one global position in a seeded permutation.

A step takes the next samples of the epoch's permutation and splits them by the workers' shares.
There is no other state, so every sample of an epoch is seen exactly once, however the workers
change between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def permutation(size: int, *, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """The order of samples in an epoch, the same on every worker."""
    if not shuffle:
        return np.arange(size, dtype=np.int64)
    return np.random.default_rng((seed, epoch)).permutation(size).astype(np.int64, copy=False)


def step_samples(left: int, batch: int, minimum: int = 1) -> int:
    """The number of samples in the next step, of those left in the epoch.

    A rest below the minimum (batch norm needs two samples) is added to the step before it: nothing
    is dropped or repeated.
    """
    return left if left - batch < minimum else batch


def split_samples(total: int, shares: Sequence[int], minimum: int = 1) -> tuple[int, ...]:
    """The samples of each worker: its share, or in a short step a part in proportion to it.

    >>> split_samples(64, (40, 16, 8))
    (40, 16, 8)
    >>> split_samples(10, (40, 16, 8))
    (6, 3, 1)
    >>> split_samples(5, (8, 8, 8), minimum=2)  # no worker gets a single one
    (5, 0, 0)
    """
    whole = sum(shares)
    if total == whole:
        return tuple(shares)
    exact = [total * share / whole for share in shares]
    parts = [int(e) for e in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    if all(part == 0 or part >= minimum for part in parts):
        return tuple(parts)
    return _fill_in_order(total, shares, minimum)


def _fill_in_order(total: int, shares: Sequence[int], minimum: int) -> tuple[int, ...]:
    parts, left = [0] * len(shares), total
    for i, share in enumerate(shares):
        part = min(max(share, minimum), left)
        if 0 < left - part < minimum:
            part = left
        parts[i] = part
        left -= part
    parts[0] += left
    return tuple(parts)


def micro_batch_sizes(
    count: int, micro_steps: int, limit: int | None, minimum: int = 1
) -> list[int]:
    """The samples of a worker in one step, in parts within the memory limit.

    Parts that the limit makes necessary are full but for the last, as a DataLoader gives them;
    others are nearly equal.

    >>> micro_batch_sizes(10, 1, 4)
    [4, 4, 2]
    >>> micro_batch_sizes(10, 3, None)
    [4, 3, 3]
    """
    if count == 0:
        return []
    needed = -(-count // limit) if limit else 1
    parts = max(1, min(max(micro_steps, needed), count // minimum))
    if limit and parts == needed:
        rest = count - (parts - 1) * limit
        if rest >= min(minimum, count):
            return [limit] * (parts - 1) + [rest]
    small, more = divmod(count, parts)
    return [small + (i < more) for i in range(parts)]


@dataclass(frozen=True, slots=True)
class StepSlice:
    """One worker's part of one step; positions are in the permutation."""

    start: int  # of the step
    total: int  # samples of the step, of all workers
    first: int  # of this worker
    micro_batches: tuple[int, ...]  # sizes; empty: no samples in this step
    positions: tuple[int, ...] = ()  # of a stream: how far its shards are read after the step

    @property
    def is_filler(self) -> bool:
        """Whether this worker has no samples in the step.

        Its script gets a batch nevertheless, so that it runs the same code as in other workers.
        """
        return not self.micro_batches

    @property
    def count(self) -> int:
        return sum(self.micro_batches)

    @property
    def end(self) -> int:
        return self.start + self.total

    def next(self) -> StepSlice:
        """The same part of the step that follows, if that has as many samples."""
        return StepSlice(self.end, self.total, self.first + self.total, self.micro_batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPartition:
    """The division of a global batch among the workers of a group."""

    shares: tuple[int, ...]
    micro_steps: tuple[int, ...]
    rank: int
    limit: int | None = None  # samples that fit one worker at once
    minimum: int = 1

    @property
    def batch(self) -> int:
        return sum(self.shares)

    def slice(self, start: int, size: int) -> StepSlice | None:
        """The step at `start` of an epoch of `size` samples; None at the end of the epoch."""
        if start >= size:
            return None
        return self.part(start, step_samples(size - start, self.batch, self.minimum))

    def part(self, start: int, total: int) -> StepSlice:
        """The part of this worker in a step of `total` samples."""
        counts = split_samples(total, self.shares, self.minimum)
        sizes = self._micro_batches(counts[self.rank], self.rank)
        return StepSlice(start, total, start + sum(counts[: self.rank]), tuple(sizes))

    def counts(self, part: StepSlice) -> tuple[int, ...]:
        """The samples of each worker in that step."""
        return split_samples(part.total, self.shares, self.minimum)

    def is_even(self, part: StepSlice) -> bool:
        """Whether all workers have the same number of micro-batches in that step."""
        sizes = (self._micro_batches(count, i) for i, count in enumerate(self.counts(part)))
        return len({len(some) for some in sizes}) == 1

    def _micro_batches(self, count: int, rank: int) -> list[int]:
        """A short step has as few micro-batches as it has samples of the worker's share."""
        micro_steps, share = self.micro_steps[rank], self.shares[rank]
        if count < share:
            micro_steps = -(-micro_steps * count // share)
        return micro_batch_sizes(count, micro_steps, self.limit, self.minimum)
