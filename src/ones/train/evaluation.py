"""Evaluation over all workers: each evaluates its part of the data, and values are averaged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from ones.errors import UserError
from ones.train.elastic_group import ElasticGroup
from ones.train.process_group import GroupLostError


def shard_of(data: Any, rank: int, workers: int) -> Any:
    """A worker's part of a dataset, or a DataLoader over its part."""
    if isinstance(data, DataLoader):
        if not hasattr(data.dataset, "__len__"):
            raise UserError("job.shard needs a dataset with __len__ and __getitem__")
        return DataLoader(
            shard_of(data.dataset, rank, workers),
            batch_size=data.batch_size,
            num_workers=data.num_workers,
            collate_fn=data.collate_fn,
            pin_memory=data.pin_memory,
            worker_init_fn=data.worker_init_fn,
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError("job.shard needs a dataset with __len__ and __getitem__")
    return Subset(data, range(rank, len(data), workers))


def mean_over_workers(elastic: ElasticGroup | None, value: Tensor | float, weight: float) -> float:
    """The mean over all workers, weighted. Values of workers that die meanwhile are missing."""
    own = float(value) if weight else 0.0
    if elastic is None:
        return own
    while elastic.group is not None:
        sums = torch.tensor([own * weight, weight], dtype=torch.float64)
        try:
            elastic.group.sum_on_host(sums)
        except GroupLostError:
            elastic.step_failed()
            elastic.settle()
        else:
            total, weights = sums.tolist()
            return total / weights if weights else float("nan")
    return own
