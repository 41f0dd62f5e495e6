"""Samplers and DataLoaders of a script, as the data of a job.

A sampler draws the samples of an epoch, the same on every worker: its random numbers come from the
job's seed and the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from ones.errors import UserError


def size_of_sampler(sampler: Any) -> int:
    """Samples of one epoch."""
    name = type(sampler).__name__
    if isinstance(sampler, BatchSampler):
        raise UserError(f"sampler {name} yields batches: give a sampler of single samples")
    if isinstance(sampler, DistributedSampler):
        raise UserError(
            "sampler DistributedSampler divides the samples itself: leave it out, ones.join divides"
            " them among the workers of the moment"
        )
    if not (hasattr(sampler, "__len__") and hasattr(sampler, "__iter__")):
        raise UserError(f"sampler {name} has no __len__ and __iter__")
    size = len(sampler)
    if size < 1:
        raise UserError(f"sampler {name} is empty")
    return size


def order_of_sampler(sampler: Any, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The samples of an epoch, the same on every worker."""
    order = np.array(_drawn(sampler, sampler, seed=seed, epoch=epoch), dtype=np.int64)
    if len(order) != len(sampler):
        raise UserError(
            f"sampler {type(sampler).__name__} has length {len(sampler)} and yields {len(order)}"
            " samples"
        )
    return order


class OrderOfBatches:
    """The samples of an epoch in the order of a batch sampler: its `__iter__` yields lists.

    Its `set_epoch` is called first, if it has one. Each list has at most `batch_size` samples, and
    all epochs have the same number of samples. A step takes as many of them as the job's batch.
    """

    def __init__(self, sampler: Any, batch_size: int, seed: int) -> None:
        self._sampler, self._batch_size, self._seed = sampler, batch_size, seed
        self._name = type(sampler).__name__
        if not hasattr(sampler, "__iter__"):
            raise UserError(f"batch_sampler {self._name} has no __iter__")
        self.size = len(self._samples(0))
        if not self.size:
            raise UserError(f"batch_sampler {self._name} is empty")

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        samples = self._samples(epoch)
        if len(samples) != self.size:
            raise UserError(
                f"batch_sampler {self._name} yields {len(samples)} samples in epoch {epoch} and"
                f" {self.size} at first: the number must stay the same"
            )
        return np.array(samples, dtype=np.int64)

    def _samples(self, epoch: int) -> list[int]:
        inner = getattr(self._sampler, "sampler", None)  # as torch's BatchSampler has it
        samples: list[int] = []
        for batch in _drawn(self._sampler, inner, seed=self._seed, epoch=epoch):
            if len(batch) > self._batch_size:
                raise UserError(
                    f"batch_sampler {self._name} yields a batch of {len(batch)} samples: at most"
                    f" batch_size {self._batch_size} is possible, as steps count in samples"
                )
            samples += batch
        return samples


def _drawn(sampler: Any, random_part: Any, *, seed: int, epoch: int) -> list[Any]:
    """What a sampler yields in an epoch, with random numbers of the job's seed and the epoch."""
    for part in (sampler, random_part):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
            break
    number = int(np.random.default_rng((seed, epoch)).integers(2**62))
    with _seeded(number):
        generator = getattr(random_part, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
        return list(sampler)


@contextmanager
def _seeded(number: int) -> Iterator[None]:
    """Seeds the global random generators, and restores them."""
    plain, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 scripts use it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(legacy)  # noqa: NPY002


def options_of_dataloader(loader: DataLoader[Any]) -> dict[str, Any]:
    """Batch size and options of `ones.join` that mean the same as this DataLoader."""
    own = loader.batch_sampler if loader.batch_size is None else None
    if loader.batch_size is None and own is None:
        raise UserError(
            "the DataLoader has no batch_size: ones.join makes the batches, as their size changes;"
            " give the dataset of single samples and batch_size="
        )
    options: dict[str, Any] = {
        "batch_size": loader.batch_size or getattr(own, "batch_size", None),
        "num_workers": loader.num_workers,
        "worker_init_fn": loader.worker_init_fn,
        "pin_memory": loader.pin_memory,
        "drop_last": loader.drop_last,
    }
    if loader.collate_fn is not default_collate:
        options["collate_fn"] = loader.collate_fn
    sampler = loader.sampler
    if own is not None:
        return options | {"batch_sampler": own}
    if isinstance(loader.dataset, IterableDataset):
        return options
    if isinstance(sampler, SequentialSampler):
        options["shuffle"] = False
    elif isinstance(sampler, DistributedSampler):
        options["shuffle"] = sampler.shuffle
    elif not _is_permutation(sampler):
        options["sampler"] = sampler
    return options


def _is_permutation(sampler: Any) -> bool:
    """Whether a sampler is that of `shuffle=True`."""
    return (
        type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    )
