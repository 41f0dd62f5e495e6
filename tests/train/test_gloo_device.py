"""gloo as the communication library of a device. Here the device is the CPU."""

# ruff: noqa: ANN401 (c10d has no types)

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from ones.errors import UserError
from ones.train import process_group
from ones.train.device import backend_name
from ones.train.gloo_device import GlooDeviceGroup
from ones.train.process_group import GroupLostError, ProcessGroup, wait_all
from tests.processes import PATIENCE
from tests.train.thread_groups import run_in_group


@pytest.fixture(autouse=True)
def _gloo_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(store: Any, rank: int, size: int, _: torch.device) -> GlooDeviceGroup:
        return GlooDeviceGroup(store, rank, size)

    monkeypatch.setattr(process_group, "create_device_backend", create)
    monkeypatch.setattr(process_group, "synchronise_device", lambda _: None)


def test_sums_and_copies() -> None:
    def work(group: ProcessGroup, rank: int) -> tuple[list[float], list[float]]:
        total, copy = torch.full((3,), float(rank + 1)), torch.full((2,), float(rank))
        wait_all([group.all_reduce(total), group.broadcast(copy, 1)])
        group.drain()
        assert group.has_device_channel
        return total.tolist(), copy.tolist()

    assert run_in_group(2, work) == [([3.0] * 3, [1.0] * 2)] * 2


def test_a_lost_member_ends_the_wait() -> None:
    lost = threading.Event()

    def work(group: ProcessGroup, rank: int) -> str:
        if rank == 1:
            lost.wait(PATIENCE)
            return ""
        reduction = group.all_reduce(torch.ones(4))
        group.abort(hangs=False)
        try:
            wait_all([reduction])
        except GroupLostError:
            return "lost"
        finally:
            lost.set()
        return "trained on"

    assert run_in_group(2, work)[0] == "lost"


def test_another_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONES_BACKEND", "mpi")
    with pytest.raises(UserError, match="ONES_BACKEND 'mpi' is not one of: nccl, gloo"):
        backend_name()
    monkeypatch.delenv("ONES_BACKEND")
    assert backend_name() == "nccl"
