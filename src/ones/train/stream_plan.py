"""Which samples of a stream a step takes: a function of positions and lengths of its shards.

A step takes evenly from all shards, those first that were read least. So its samples do not depend
on the number of workers. They are divided so that a worker gets the samples of its own shards, as
far as the shares allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ones.train.sampler import BatchPartition, StepSlice, step_samples

UNKNOWN = -1  # length of a shard, before any worker has reached its end
ENDLESS = 1 << 40  # samples of an epoch, as long as they are not known


class Pick(NamedTuple):
    shard: int
    start: int
    size: int


_NOTHING = Pick(0, 0, 0)


@dataclass(frozen=True, slots=True)
class StreamSlice(StepSlice):
    """One worker's part of a step."""

    picks: tuple[Pick, ...] = ()
    filler: Pick = _NOTHING  # for a worker without samples


def home_of(shard: int, workers: int) -> int:
    """The worker that reads a shard if shares are equal."""
    return shard % workers


def samples_of(lengths: Sequence[int]) -> int:
    """Samples of an epoch."""
    return ENDLESS if UNKNOWN in lengths else sum(lengths)


def pick(positions: Sequence[int], lengths: Sequence[int], total: int) -> list[Pick]:
    """The next samples of all shards. A shard without a known end counts as endless.

    >>> pick([4, 3], [-1, 4], 4)
    [Pick(shard=0, start=4, size=3), Pick(shard=1, start=3, size=1)]
    """
    counts = [0] * len(positions)
    room = [
        ENDLESS if length == UNKNOWN else length - at
        for at, length in zip(positions, lengths, strict=True)
    ]
    left = total
    while left:
        level = [at + n for at, n in zip(positions, counts, strict=True)]
        live = sorted((s for s in range(len(room)) if room[s]), key=lambda s: (level[s], s))
        each, more = divmod(left, len(live))
        for i, s in enumerate(live):
            count = min(each + (i < more), room[s])
            counts[s] += count
            room[s] -= count
            left -= count
    return [Pick(s, positions[s], n) for s, n in enumerate(counts) if n]


def divide(picks: Sequence[Pick], counts: Sequence[int]) -> list[list[Pick]]:
    """The samples of each worker, as many as its count."""
    in_order = sorted(picks, key=lambda p: (home_of(p.shard, len(counts)), p.shard))
    parts: list[list[Pick]] = []
    for count in counts:
        part: list[Pick] = []
        left = count
        while left:
            shard, start, size = in_order.pop(0)
            taken = min(size, left)
            part.append(Pick(shard, start, taken))
            left -= taken
            if taken < size:
                in_order.insert(0, Pick(shard, start + taken, size - taken))
        parts.append(part)
    return parts


def plan_steps(
    partition: BatchPartition,
    positions: Sequence[int],
    lengths: Sequence[int],
    offset: int,
    end: int,
) -> Iterator[StreamSlice]:
    """This worker's parts of the steps from `offset` on, until the data or `end` is reached."""
    while offset < end:
        total = step_samples(end - offset, partition.batch, partition.minimum)
        picks = pick(positions, lengths, total)
        positions = list(positions)
        for shard, _, count in picks:
            positions[shard] += count
        part = partition.part(offset, total)
        own = divide(picks, partition.counts(part))[partition.rank]
        yield StreamSlice(
            part.start,
            part.total,
            part.first,
            part.micro_batches,
            positions=tuple(positions),
            picks=tuple(own),
            filler=picks[0],
        )
        offset = part.end
