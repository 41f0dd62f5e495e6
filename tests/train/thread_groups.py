"""Process groups with threads of this process as members."""

# ruff: noqa: ANN401 (c10d has no types)

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from ones.train import process_group
from ones.train.emulation.strict_group import Device, StrictGroup
from ones.train.process_group import ProcessGroup

CPU = torch.device("cpu")
SEEDED = threading.Lock()  # torch's global random generator is shared by all threads


def run_in_group(size: int, work: Callable[[ProcessGroup, int], Any]) -> list[Any]:
    """Calls `work` in each member of a group; returns the results by rank."""
    c10d: Any = torch.distributed
    store = c10d.HashStore()
    results: list[Any] = [None] * size
    problems: list[BaseException] = []
    groups: list[ProcessGroup] = []  # none may close while another still reads

    def run(rank: int) -> None:
        try:
            group = ProcessGroup.connect(
                store, "test", rank=rank, size=size, host="127.0.0.1", device=CPU, timeout=60.0
            )
            groups.append(group)
            results[rank] = work(group, rank)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return results


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


@contextlib.contextmanager
def strict_groups(
    *, seed: int = 0, is_on_device: Callable[[Tensor], bool] = lambda tensor: True
) -> Iterator[None]:
    """Within, members have a device each, and groups keep to the rules of `strict_group`."""
    own = threading.local()

    def create(store: Any, rank: int, size: int, _: torch.device) -> StrictGroup:
        own.device = Device()
        return StrictGroup(
            store, rank, size, own.device, seed=seed, most_skew=0.002, is_on_device=is_on_device
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_group, "create_device_backend", create)
        patch.setattr(process_group, "synchronise_device", lambda _: own.device.synchronise())
        patch.setattr(ProcessGroup, "is_on_device", lambda _, tensor: is_on_device(tensor))
        yield
