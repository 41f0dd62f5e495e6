"""Loading of micro-batches, in this process or by DataLoader workers that read ahead.

Data read ahead for an old partition is discarded; the position counts samples that were trained on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    DataLoader,
    Sampler,
    TensorDataset,
    default_collate,
)

from ones.errors import UserError
from ones.train.sampler import BatchPartition, StepSlice, permutation
from ones.train.script_samplers import OrderOfBatches, order_of_sampler, size_of_sampler

_FILLER = 2  # samples: batch norm needs two


def size_of(dataset: object) -> int:
    """Samples of one epoch. Raises UserError for a dataset that cannot be indexed."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UserError(
            f"dataset {type(dataset).__name__} has no __len__ and __getitem__, and is no iterable"
        )
    size = len(dataset)
    if size < 1:
        raise UserError(f"dataset {type(dataset).__name__} is empty")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of `ones.join` for loading; they mean the same as those of torch's DataLoader."""

    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    worker_init_fn: Callable[[int], None] | None = None
    pin_memory: bool = False
    sampler: Any = None
    drop_last: bool = False
    start_epoch: int = 0
    batch_sampler: Any = None  # its batches are taken in order, and divided as the job needs it
    samples: int | None = None  # of an epoch of a stream, if known: for forecasts


class _BatchSampler(Sampler[list[int]]):
    """The batch sampler of the DataLoader: calls `batches` at each iteration."""

    def __init__(self) -> None:
        self.batches: Callable[[], Iterator[list[int]]] = lambda: iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches()


class Loader:
    """Loads the micro-batches of the rest of an epoch, under one partition."""

    def __init__(
        self,
        dataset: Any,
        options: LoaderOptions,
        *,
        seed: int,
        shuffle: bool = True,
        batch_size: int = 1,
    ) -> None:
        self.dataset, self.options = dataset, options
        self.size = size_of(dataset)  # samples of an epoch
        if options.sampler is not None:
            self.size = size_of_sampler(options.sampler)
        if options.batch_sampler is not None:
            self._orders = OrderOfBatches(options.batch_sampler, batch_size, seed)
            self.size = self._orders.size
        if options.drop_last:
            self.size -= self.size % batch_size
            if not self.size:
                raise UserError(f"drop_last leaves no sample: batch_size {batch_size} is too large")
        self.seed, self.shuffle = seed, shuffle
        self._sampler = _BatchSampler()
        self.mark = 0  # of the order of samples, where a sampler draws it
        self._permutation: tuple[int, int, NDArray[np.int64]] | None = None
        self._loader: DataLoader[Any] | None = None
        if options.num_workers:
            self._loader = DataLoader(
                dataset,
                batch_sampler=self._sampler,
                collate_fn=options.collate_fn,
                num_workers=options.num_workers,
                worker_init_fn=options.worker_init_fn,
                pin_memory=options.pin_memory,
                persistent_workers=True,
            )

    # as `stream_loader` has it

    has_size = True

    @property
    def described_size(self) -> int:
        return self.size

    def connect(
        self, generation: Callable[[], tuple[int, int]], exchange: Callable[[torch.Tensor], bool]
    ) -> None:
        """Does nothing: all workers know the order of samples."""

    def must_agree(self, offset: int) -> bool:
        return False

    def steps(
        self, partition: BatchPartition, epoch: int, offset: int, end: int | None = None
    ) -> Iterator[tuple[StepSlice, Iterator[Any]] | None]:
        """The steps from `offset` to `end`, or of the epoch, each with its micro-batches."""
        size = self.size if end is None else min(end, self.size)
        order = self._order_of(epoch)
        if self._loader is None:
            for part in _slices(partition, offset, size):
                yield part, map(self._fetch, _indices(order, part))
            return

        def read_ahead() -> Iterator[list[int]]:
            for part in _slices(partition, offset, size):
                yield from (indices.tolist() for indices in _indices(order, part))

        self._sampler.batches = read_ahead
        fetched = iter(self._loader)
        for part in _slices(partition, offset, size):
            yield part, (next(fetched) for _ in range(max(1, len(part.micro_batches))))

    def first(self, count: int) -> Any:
        """A micro-batch of the first samples, for a rehearsal."""
        return self._fetch(np.arange(min(count, self.size), dtype=np.int64))

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        cached = self._permutation
        if cached is None or cached[:2] != (self.seed, epoch):
            if self.options.batch_sampler is not None:
                order = self._orders.of_epoch(epoch)
                self.mark = zlib.crc32(order.tobytes())
            elif self.options.sampler is not None:
                order = order_of_sampler(self.options.sampler, seed=self.seed, epoch=epoch)
                self.mark = zlib.crc32(order.tobytes())
            else:
                size = len(self.dataset)
                order = permutation(size, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
            cached = self._permutation = (self.seed, epoch, order)
        return cached[2]

    def _fetch(self, picked: NDArray[np.int64]) -> Any:
        dataset, collate = self.dataset, self.options.collate_fn
        if collate is None and type(dataset) is TensorDataset:
            index = torch.from_numpy(picked)
            return [tensor[index] for tensor in dataset.tensors]
        indices = picked.tolist()
        if hasattr(dataset, "__getitems__"):
            samples = dataset.__getitems__(indices)
        else:
            samples = [dataset[i] for i in indices]
        return (collate or default_collate)(samples)


def _indices(order: NDArray[np.int64], part: StepSlice) -> Iterator[NDArray[np.int64]]:
    """The sample indices of each micro-batch."""
    if part.is_filler:
        yield order[part.start : part.start + _FILLER]
    first = part.first
    for count in part.micro_batches:
        yield order[first : first + count]
        first += count


def _slices(partition: BatchPartition, offset: int, size: int) -> Iterator[StepSlice]:
    while (part := partition.slice(offset, size)) is not None:
        yield part
        while size - part.end - part.total >= partition.minimum and part.total == partition.batch:
            part = part.next()  # the same division of as many samples
            yield part
        offset = part.end


def to_device(data: Any, device: torch.device) -> Any:
    """Moves the tensors in lists, tuples and mappings, and objects with `to`; returns everything
    else unchanged."""
    if isinstance(data, torch.Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if callable(getattr(data, "to", None)):
        return data.to(device)
    if isinstance(data, Mapping):
        return type(data)({k: to_device(v, device) for k, v in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(v, device) for v in data))
    if isinstance(data, list | tuple):
        return type(data)([to_device(v, device) for v in data])
    return data
