"""Process groups with threads of this process as members."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import Tensor

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
