"""Loads the micro-batches of a stream; takes the place of `loading.Loader`.

The end of a shard is found by the worker that reads it, and all workers must plan the same steps.
So they agree on a window of steps: each reads ahead what it needs, and one more step; then they
exchange the lengths of the shards that have ended, and plan again if any has. Between two windows
nothing is exchanged. A window belongs to a generation: every change of workers begins a new one.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate

from ones.errors import UserError
from ones.train.loading import Loader, LoaderOptions
from ones.train.progress import TrainingProgress
from ones.train.sampler import BatchPartition, StepSlice
from ones.train.stream_plan import (
    ENDLESS,
    UNKNOWN,
    Pick,
    StreamSlice,
    home_of,
    plan_steps,
    samples_of,
)
from ones.train.streams import ShardReader, source_of

_WINDOW = 8  # steps at most: they are read ahead
_FILLER = 2  # samples: batch norm needs two
_DIGITS = 1 << 20
_GUESS = 1000  # batches of an epoch of unknown size


class _Window(NamedTuple):
    generation: tuple[int, int]
    epoch: int
    begin: int
    end: int  # position in the epoch from which the next window is needed
    steps: int

    def covers(self, generation: tuple[int, int], epoch: int, offset: int) -> bool:
        same = (generation, epoch) == (self.generation, self.epoch)
        return same and self.begin <= offset < self.end


class StreamLoader:
    """The steps of a job over a stream."""

    def __init__(
        self,
        dataset: Any,
        options: LoaderOptions,
        *,
        progress: TrainingProgress,
        batch_size: int,
    ) -> None:
        for name in ("sampler", "batch_sampler"):
            if getattr(options, name) is not None:
                raise UserError(f"{name} is not possible with a stream: its order is its own")
        if options.num_workers:
            raise UserError(
                "num_workers is not possible with a stream: each worker of the job reads its shards"
                " in its own process; leave num_workers out"
            )
        self.dataset, self.options = dataset, options
        self._source, self._progress, self._batch_size = source_of(dataset), progress, batch_size
        self._readers: dict[int, ShardReader] = {}
        self._readers_epoch = 0
        self._recent: list[Any] = []  # the last samples, for a step in which this worker has none
        self._window: _Window | None = None
        self._generation: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._exchange: Callable[[Tensor], bool] = lambda known: True

    def connect(
        self, generation: Callable[[], tuple[int, int]], exchange: Callable[[Tensor], bool]
    ) -> None:
        """`exchange` sums a tensor over all workers, in place; False: a worker was lost or left."""
        self._generation, self._exchange = generation, exchange

    # for the training loop

    @property
    def size(self) -> int:
        """Samples of the epoch; ENDLESS until its end is known."""
        whole = samples_of(self._progress.lengths or [UNKNOWN])
        if whole != ENDLESS and self.options.drop_last:
            whole = max(whole - whole % self._batch_size, self._progress.offset)
        return whole

    @property
    def has_size(self) -> bool:
        return False

    @property
    def described_size(self) -> int:
        """Samples of an epoch as they are reported before the first one has ended."""
        if self.options.samples is not None:
            return self.options.samples
        try:
            return max(1, len(self.dataset))
        except TypeError:
            return _GUESS * self._batch_size

    @property
    def mark(self) -> int:
        """Equal on workers that have read equally far in each shard."""
        return zlib.crc32(array("q", self._progress.positions).tobytes())

    def must_agree(self, offset: int) -> bool:
        """Whether the workers agree on a window before their next step."""
        window, progress = self._window, self._progress
        return window is None or not window.covers(self._generation(), progress.epoch, offset)

    def steps(
        self, partition: BatchPartition, epoch: int, offset: int, end: int | None = None
    ) -> Iterator[tuple[StepSlice, Iterator[Any]] | None]:
        """The steps from `offset` on, each with its micro-batches; None: a worker was lost."""
        progress = self._progress
        end = ENDLESS if end is None else end
        self._begin(epoch)
        while offset < min(self.size, end):
            if self.must_agree(offset):
                if not self._agree(partition, offset, end):
                    yield None
                    return
                continue  # the epoch may be over
            window = self._window
            assert window is not None
            for part in self._plan(partition, offset, end):
                if part.start >= window.end:
                    break
                self._read(part.picks)
                yield part, self._load(part)
            offset = progress.offset

    def first(self, count: int) -> Any:
        """A micro-batch of the first samples, for a rehearsal."""
        return self._collate(list(islice(self._source.read(0, 0, 0), count)))

    # within

    def _begin(self, epoch: int) -> None:
        progress, shards = self._progress, self._source.num_shards
        if not progress.positions:
            progress.positions, progress.lengths = [0] * shards, [UNKNOWN] * shards
        elif len(progress.positions) != shards:
            raise UserError(
                f"the stream has {shards} shards, and had {len(progress.positions)} before: the"
                " number must stay the same while a job lives"
            )
        if self._readers_epoch != epoch:
            self._readers.clear()
            self._readers_epoch = epoch

    def _plan(self, partition: BatchPartition, offset: int, end: int) -> Iterator[StreamSlice]:
        progress = self._progress
        positions, lengths = progress.positions, progress.lengths
        return plan_steps(partition, positions, lengths, offset, min(self.size, end))

    def _agree(self, partition: BatchPartition, offset: int, end: int) -> bool:
        progress, window, generation = self._progress, self._window, self._generation()
        steps = 1
        if window is not None and window.generation == generation:
            steps = min(_WINDOW, 2 * window.steps)
        elif len(partition.shares) <= self._source.num_shards:
            self._close_readers(partition)
        while True:
            parts = list(islice(self._plan(partition, offset, end), steps + 1))
            lengths = list(progress.lengths)
            ended = self._read([p for part in parts for p in part.picks])
            for shard, length in ended.items():
                lengths[shard] = length
            known = _as_tensor(lengths, is_new=lengths != progress.lengths)
            if not self._exchange(known):
                return False
            merged, is_new = _merge(known, len(partition.shares))
            self._check_ends(merged)
            progress.lengths = merged
            if not is_new:
                break
        last = parts[steps - 1].end if len(parts) > steps else min(self.size, end)
        self._window = _Window(generation, progress.epoch, offset, last, steps)
        return True

    def _check_ends(self, lengths: list[int]) -> None:
        for shard, reader in self._readers.items():
            if lengths[shard] != UNKNOWN and reader.reached > lengths[shard]:
                raise _unequal(shard)

    def _close_readers(self, partition: BatchPartition) -> None:
        """Forgets the shards that other workers read now."""
        for shard in list(self._readers):
            if home_of(shard, len(partition.shares)) != partition.rank:
                del self._readers[shard]

    def _read(self, picks: Sequence[Pick]) -> dict[int, int]:
        """Reads what is picked; returns the lengths of shards that end before."""
        ended = {}
        for shard, start, count in picks:
            reader = self._readers.setdefault(
                shard, ShardReader(self._source, shard, self._readers_epoch)
            )
            # all from the position on is kept: a step that failed may be divided otherwise
            reached = reader.read_to(self._progress.positions[shard], start + count)
            if reached < start + count:
                ended[shard] = reached
        return ended

    def _load(self, part: StreamSlice) -> Iterator[Any]:
        if part.is_filler:
            if not self._recent:
                picks = (part.filler._replace(size=min(_FILLER, part.filler.size)),)
                self._read(picks)
                self._recent = self._take(picks)
            yield self._collate(self._recent)
            return
        samples = self._take(part.picks)
        self._recent = samples[:_FILLER]
        first = 0
        for count in part.micro_batches:
            yield self._collate(samples[first : first + count])
            first += count

    def _take(self, picks: Sequence[Pick]) -> list[Any]:
        return [
            sample
            for shard, start, count in picks
            for sample in self._readers[shard].take(start, count)
        ]

    def _collate(self, samples: list[Any]) -> Any:
        return (self.options.collate_fn or default_collate)(samples)


#: of a job: over a dataset that can be indexed, or over a stream
AnyLoader = Loader | StreamLoader


def _as_tensor(lengths: list[int], *, is_new: bool) -> Tensor:
    """The known lengths of one worker, in a form that can be summed.

    Rows: number, lengths, their last digits, the squares of these, which show whether all are
    equal. The last column says whether anything is new.
    """
    known = torch.zeros((4, len(lengths) + 1), dtype=torch.int64)
    for shard, length in enumerate(lengths):
        if length != UNKNOWN:
            digits = length % _DIGITS
            known[:, shard] = torch.tensor([1, length, digits, digits * digits])
    known[0, -1] = int(is_new)
    return known


def _merge(known: Tensor, workers: int) -> tuple[list[int], bool]:
    """The lengths that any worker knows, and whether another one did not know all of them."""
    lengths, is_new = [], bool(known[0, -1] > 0)
    for shard, (count, total, digits, squares) in enumerate(known[:, :-1].T.tolist()):
        if count and count * squares != digits * digits:
            raise _unequal(shard)
        lengths.append(total // count if count else UNKNOWN)
        is_new |= 0 < count < workers
    return lengths, is_new


def _unequal(shard: int) -> UserError:
    return UserError(
        f"shard {shard} of the stream ends at different samples in different workers: it must yield"
        " the same samples in the same order on every worker"
    )
