"""Streams of samples: what can be iterated over and not indexed.

A stream has a fixed number of shards. How far each shard was read is part of the training state, so
that a worker that joins, or a job that resumes, continues there. A source that can seek has `read`
of its own. Any other is iterated over again, and the samples before the position are thrown away:
it must yield the same samples in the same order on every worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import IterableDataset

from ones.errors import UserError


@runtime_checkable
class ShardedSource(Protocol):
    """A source in shards that can seek: each worker reads its own shards, from any position."""

    num_shards: int

    def read(self, shard: int, start: int, epoch: int) -> Iterator[Any]:
        """The samples of a shard from number `start` on; only the epoch changes their order."""
        ...


def is_stream(dataset: Any) -> bool:
    if isinstance(dataset, IterableDataset | ShardedSource):
        return True
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return False
    return hasattr(dataset, "__iter__") or callable(dataset)


def source_of(dataset: Any) -> ShardedSource:
    if isinstance(dataset, ShardedSource):
        if dataset.num_shards < 1:
            raise UserError(f"stream {type(dataset).__name__} has {dataset.num_shards} shards")
        return dataset
    if all(hasattr(dataset, name) for name in ("num_shards", "shard", "skip")):
        return _HuggingFaceStream(dataset)
    return _PlainStream(dataset)


class _HuggingFaceStream:
    """A streaming dataset of Hugging Face `datasets`: its shards are usually its files."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.num_shards = max(1, int(dataset.num_shards))

    def read(self, shard: int, start: int, epoch: int) -> Iterator[Any]:
        part = self._dataset
        if self.num_shards > 1:
            part = part.shard(num_shards=self.num_shards, index=shard)
        if start:
            part = part.skip(start)
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)  # a part has an epoch of its own
        return iter(part)


class _PlainStream:
    """An iterable, or a function that returns one: a single shard, which every worker reads."""

    num_shards = 1

    def __init__(self, dataset: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self._dataset = dataset
        self._is_used = False

    def read(self, shard: int, start: int, epoch: int) -> Iterator[Any]:
        dataset: Any = self._dataset
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        samples = iter(dataset if hasattr(dataset, "__iter__") else dataset())
        if samples is dataset:
            if self._is_used:
                raise UserError(
                    f"the stream is a {type(dataset).__name__}, which can be read once only: give"
                    " the function that makes it, or an object with an __iter__ that begins anew"
                )
            self._is_used = True
        return islice(samples, start, None)


class ShardReader:
    """Reads one shard in order, and keeps what was read and not yet trained on."""

    def __init__(self, source: ShardedSource, shard: int, epoch: int) -> None:
        self._source, self._shard, self._epoch = source, shard, epoch
        self._kept: deque[Any] = deque()
        self._begin = 0  # position of the first sample that is kept
        self._samples: Iterator[Any] | None = None
        self._has_ended = False

    def read_to(self, start: int, end: int) -> int:
        """Reads the samples before `end`, keeps those from `start` on; returns the last position.

        It is less than `end` if the shard ends before.
        """
        if self._samples is None or start < self._begin:
            self._samples = iter(self._source.read(self._shard, start, self._epoch))
            self._kept.clear()
            self._begin, self._has_ended = start, False
        while self._kept and self._begin < start:
            self._kept.popleft()
            self._begin += 1
        while self._begin + len(self._kept) < end and not self._has_ended:
            try:
                sample = next(self._samples)
            except StopIteration:
                self._has_ended = True
                break
            if self._begin < start:
                self._begin += 1
            else:
                self._kept.append(sample)
        return self.reached

    @property
    def reached(self) -> int:
        """The position after the last sample that was read."""
        return self._begin + len(self._kept)

    def take(self, start: int, count: int) -> list[Any]:
        """Samples that were read before."""
        first = start - self._begin
        return list(islice(self._kept, first, first + count))
