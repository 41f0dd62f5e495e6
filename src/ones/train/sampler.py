"""Which samples a worker takes: one global position over a seeded permutation.

A step takes the next samples of the epoch's permutation and splits them by the
workers' shares. Nothing else is remembered, so however the workers change between
two steps, every sample of an epoch is seen exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def permutation(size: int, *, seed: int, epoch: int, shuffle: bool = True) -> NDArray[np.int64]:
    """The order of an epoch: the same on every worker, whenever it joined."""
    if not shuffle:
        return np.arange(size, dtype=np.int64)
    return np.random.default_rng((seed, epoch)).permutation(size).astype(np.int64, copy=False)


def take(left: int, batch: int, minimum: int = 1) -> int:
    """How many samples the next step takes of those left.

    A rest too small for anybody (batch norm cannot take one sample) goes with the
    step before it: nothing is dropped and nothing is repeated.
    """
    return left if left - batch < minimum else batch


def split(total: int, shares: Sequence[int], minimum: int = 1) -> tuple[int, ...]:
    """The samples of each worker: its share, or in a short step what is due to it.

    >>> split(64, (40, 16, 8))
    (40, 16, 8)
    >>> split(10, (40, 16, 8))
    (6, 3, 1)
    >>> split(5, (8, 8, 8), minimum=2)  # nobody gets a single one
    (5, 0, 0)
    """
    whole = sum(shares)
    if total == whole:
        return tuple(shares)
    exact = [total * share / whole for share in shares]
    parts = [int(e) for e in exact]
    by_rest = sorted(range(len(shares)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_rest[: total - sum(parts)]:
        parts[i] += 1
    if all(part == 0 or part >= minimum for part in parts):
        return tuple(parts)
    return _front_first(total, shares, minimum)


def _front_first(total: int, shares: Sequence[int], minimum: int) -> tuple[int, ...]:
    parts, left = [0] * len(shares), total
    for i, share in enumerate(shares):
        part = min(max(share, minimum), left)
        if 0 < left - part < minimum:
            part = left
        parts[i] = part
        left -= part
    parts[0] += left
    return tuple(parts)


def micro_sizes(count: int, micro_steps: int, limit: int | None, minimum: int = 1) -> list[int]:
    """A worker's samples of one step in nearly equal parts, none above the memory limit.

    >>> micro_sizes(10, 1, 4)
    [4, 3, 3]
    """
    if count == 0:
        return []
    parts = max(micro_steps, -(-count // limit) if limit else 1)
    parts = max(1, min(parts, count // minimum))
    small, more = divmod(count, parts)
    return [small + (i < more) for i in range(parts)]


@dataclass(frozen=True, slots=True)
class Portion:
    """One worker's part of one step."""

    start: int  # where the step begins in the permutation
    total: int  # samples of the step, of all workers
    first: int  # of this worker, in the permutation
    micro: tuple[int, ...]  # sizes of its micro-batches; none: nothing to do in this step

    @property
    def count(self) -> int:
        return sum(self.micro)

    @property
    def end(self) -> int:
        return self.start + self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How a global batch is divided among workers, for as long as nothing changes."""

    shares: tuple[int, ...]
    micro_steps: tuple[int, ...]
    rank: int
    limit: int | None = None  # samples that fit this worker at once
    minimum: int = 1

    @property
    def batch(self) -> int:
        return sum(self.shares)

    def portion(self, start: int, size: int) -> Portion | None:
        """The step that begins at `start` of an epoch of `size` samples; None: it is over."""
        if start >= size:
            return None
        total = take(size - start, self.batch, self.minimum)
        counts = split(total, self.shares, self.minimum)
        mine = counts[self.rank]
        sizes = micro_sizes(mine, self.micro_steps[self.rank], self.limit, self.minimum)
        return Portion(start, total, start + sum(counts[: self.rank]), tuple(sizes))

    def counts(self, portion: Portion) -> tuple[int, ...]:
        """Of all workers, in that step."""
        return split(portion.total, self.shares, self.minimum)

    def is_even(self, portion: Portion) -> bool:
        """Have all workers the same number of micro-batches in that step?"""
        parts = {
            len(micro_sizes(count, micro, self.limit, self.minimum))
            for count, micro in zip(self.counts(portion), self.micro_steps, strict=True)
        }
        return len(parts) == 1
