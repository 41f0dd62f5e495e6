"""Makes all groups of a worker on the CPU keep to the rules of NCCL; STRICT is the seed.

UNDRAINED plants a fault in the library: the host does not wait at the end of a group.
"""

# ruff: noqa: ANN401 (c10d has no types)

from __future__ import annotations

import os
from typing import Any

import torch

from ones.train import process_group, replica
from ones.train.emulation.strict_group import Device, StrictGroup


def install(seed: int, most_skew: float = 0.002) -> Device:
    """Makes all groups of this process strict; nothing is sent before a switch, as on GPUs."""
    own = Device()

    def create(store: Any, rank: int, size: int, _: torch.device) -> StrictGroup:
        return StrictGroup(
            store, rank, size, own, seed=seed, most_skew=most_skew, is_exclusive=True
        )

    process_group.create_device_backend = create  # type: ignore[assignment]
    process_group.synchronise_device = lambda device: own.synchronise()
    replica.Replica.is_repeatable = property(lambda self: False)  # type: ignore[assignment,method-assign]
    if os.environ.get("UNDRAINED"):
        process_group.ProcessGroup.drain = lambda self: None  # type: ignore[method-assign]
    return own
