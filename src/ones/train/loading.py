"""Samples to batches: in this process, or by DataLoader workers that read ahead.

What was read ahead for a division that no longer holds is thrown away; the position
counts what was trained on, not what was fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    TensorDataset,
    default_collate,
)

from ones.errors import UserError
from ones.train.sampler import Division, Portion, permutation


def size_of(dataset: object) -> int:
    """Samples of one epoch; what cannot be indexed is refused."""
    if isinstance(dataset, IterableDataset):
        raise UserError(
            f"dataset {type(dataset).__name__} is iterable: ones.join needs a map-style one"
            " (with __len__ and __getitem__), so that every sample is seen once per epoch"
            " however the workers change"
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UserError(
            f"dataset {type(dataset).__name__} has no __len__ and __getitem__:"
            " ones.join needs a map-style dataset"
        )
    size = len(dataset)
    if size < 1:
        raise UserError(f"dataset {type(dataset).__name__} is empty")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    worker_init_fn: Callable[[int], None] | None = None
    pin_memory: bool = False


class _Order(Sampler[list[int]]):
    """The batch sampler of the DataLoader: reads the plan anew at each iteration."""

    def __init__(self) -> None:
        self.batches: Callable[[], Iterator[list[int]]] = lambda: iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches()


class Loader:
    """Micro-batches of the rest of an epoch, under one division."""

    def __init__(
        self, dataset: Any, options: LoaderOptions, *, seed: int, shuffle: bool = True
    ) -> None:
        self.dataset, self.options = dataset, options
        self.size = size_of(dataset)
        self.seed, self.shuffle = seed, shuffle
        self._order = _Order()
        self._permutation: tuple[int, int, NDArray[np.int64]] | None = None
        self._loader: DataLoader[Any] | None = None
        if options.num_workers:
            self._loader = DataLoader(
                dataset,
                batch_sampler=self._order,
                collate_fn=options.collate_fn,
                num_workers=options.num_workers,
                worker_init_fn=options.worker_init_fn,
                pin_memory=options.pin_memory,
                persistent_workers=True,
            )

    def steps(
        self, division: Division, epoch: int, offset: int
    ) -> Iterator[tuple[Portion, Iterator[Any]]]:
        """The steps from `offset` to the end of the epoch, each with its micro-batches."""
        order = self._ordered(epoch)
        if self._loader is None:
            for portion in _portions(division, offset, self.size):
                yield portion, map(self._fetch, _indices(order, portion))
            return

        def read_ahead() -> Iterator[list[int]]:
            for portion in _portions(division, offset, self.size):
                yield from (some.tolist() for some in _indices(order, portion))

        self._order.batches = read_ahead
        fetched = iter(self._loader)
        for portion in _portions(division, offset, self.size):
            yield portion, (next(fetched) for _ in portion.micro)

    def _ordered(self, epoch: int) -> NDArray[np.int64]:
        cached = self._permutation
        if cached is None or cached[:2] != (self.seed, epoch):
            order = permutation(self.size, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
            cached = self._permutation = (self.seed, epoch, order)
        return cached[2]

    def _fetch(self, picked: NDArray[np.int64]) -> Any:
        dataset, collate = self.dataset, self.options.collate_fn
        if collate is None and type(dataset) is TensorDataset:
            places = torch.from_numpy(picked)
            return [tensor[places] for tensor in dataset.tensors]
        indices = picked.tolist()
        if hasattr(dataset, "__getitems__"):
            samples = dataset.__getitems__(indices)
        else:
            samples = [dataset[i] for i in indices]
        return (collate or default_collate)(samples)


def _indices(order: NDArray[np.int64], portion: Portion) -> Iterator[NDArray[np.int64]]:
    """Of each micro-batch."""
    first = portion.first
    for count in portion.micro:
        yield order[first : first + count]
        first += count


def _portions(division: Division, offset: int, size: int) -> Iterator[Portion]:
    while (portion := division.portion(offset, size)) is not None:
        yield portion
        offset = portion.end


def to_device(data: Any, device: torch.device) -> Any:
    """Tensors of lists, tuples and mappings, moved; everything else as it is."""
    if isinstance(data, torch.Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if isinstance(data, Mapping):
        return type(data)({k: to_device(v, device) for k, v in data.items()})  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(v, device) for v in data))
    if isinstance(data, list | tuple):
        return type(data)(to_device(v, device) for v in data)
    return data
