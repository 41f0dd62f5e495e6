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
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    number = int(np.random.default_rng((seed, epoch)).integers(2**62))
    with _seeded(number):
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
        order = np.fromiter(iter(sampler), dtype=np.int64)
    if len(order) != len(sampler):
        raise UserError(
            f"sampler {type(sampler).__name__} has length {len(sampler)} and yields {len(order)}"
            " samples"
        )
    return order


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
    if loader.batch_size is None:
        kind = "no batch_size" if loader.batch_sampler is None else "a batch_sampler of its own"
        raise UserError(
            f"the DataLoader has {kind}: ones.join makes the batches, as their size changes; give"
            " the dataset, batch_size= and, for an order of your own, sampler="
        )
    options: dict[str, Any] = {
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "worker_init_fn": loader.worker_init_fn,
        "pin_memory": loader.pin_memory,
        "drop_last": loader.drop_last,
    }
    if loader.collate_fn is not default_collate:
        options["collate_fn"] = loader.collate_fn
    sampler = loader.sampler
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
