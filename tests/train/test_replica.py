"""State gets from one worker to another whole, and into a checkpoint and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

from ones.train.learning_rate import LearningRate
from ones.train.process_group import ProcessGroup
from ones.train.progress import TrainingProgress
from ones.train.replica import Replica, broadcast_buffers
from ones.train.tensor_messages import copy_to_cpu
from tests.train.test_equivalence import equal
from tests.train.thread_groups import SEEDED, backward, run_in_group


def replica(seed: int, steps: int, *, wide: int = 8) -> Replica:
    """`wide` enough and its tensors travel alone."""
    with SEEDED:
        return _replica(seed, steps, wide)


def _replica(seed: int, steps: int, wide: int) -> Replica:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, wide), nn.BatchNorm1d(wide), nn.Linear(wide, wide))
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=float(2 ** (seed + 1)))
    rate = LearningRate(lambda ratio: ratio, 10, 5)
    made = Replica(
        net, opt, scheduler=schedule, scaler=scaler, rate=rate, progress=TrainingProgress(seed=seed)
    )
    for _ in range(steps):
        opt.zero_grad()
        backward(scaler.scale(net(torch.randn(4, 4)).square().mean()))
        scaler.step(opt)
        scaler.update()
        schedule.step()
        made.progress.step += 1
        rate.set_batch(10 * made.progress.step, made.progress.step)
    made.has_state = steps > 0
    return made


@pytest.mark.parametrize("wide", [8, 600])
def test_all_become_equal_to_the_workers_that_are_ahead(wide: int) -> None:
    marks = (3, -1, 3, 2)

    def work(group: ProcessGroup, rank: int) -> dict[str, Any]:
        ahead = marks[rank] == 3
        mine = replica(9 if ahead else rank, max(0, marks[rank]), wide=wide)
        received = mine.synchronise(group, marks[rank])
        assert received is not ahead
        assert mine.has_state
        state: dict[str, Any] = copy_to_cpu(mine.state())
        return state

    states = run_in_group(4, work)
    for state in states[1:]:
        assert equal(states[0], state)
    assert states[0]["progress"]["step"] == 3
    assert len(states[1]["optimizer"]["state"]) == 6


def test_without_training_the_state_of_rank_0_counts() -> None:
    def work(group: ProcessGroup, rank: int) -> dict[str, Any]:
        mine = replica(rank, 0)
        mine.synchronise(group, -1)
        return copy_to_cpu(mine.state())["model"]  # type: ignore[no-any-return]

    first, second = run_in_group(2, work)
    assert equal(first, second)


def test_another_model_is_refused_by_name() -> None:
    def work(group: ProcessGroup, rank: int) -> str:
        mine = replica(0, 1, wide=8 + rank)
        try:
            mine.synchronise(group, 1 - rank)
        except Exception as problem:
            group.close()  # as a script that ends: the other one must not wait for ever
            return str(problem)
        return ""

    assert "the model of this worker has other shapes" in run_in_group(2, work)[1]


def test_buffers_follow_the_first() -> None:
    def work(group: ProcessGroup, rank: int) -> float:
        net = nn.BatchNorm1d(3)
        net.running_mean.fill_(float(rank + 1))  # type: ignore[union-attr]
        broadcast_buffers(group, net)
        return float(net.running_mean[0])  # type: ignore[index]

    assert run_in_group(3, work) == [1.0, 1.0, 1.0]


def test_optimizer_state_is_in_the_order_of_the_parameters() -> None:
    """In this order receivers take the memory that was allocated while they waited."""
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))
    opt = torch.optim.AdamW(net.parameters())
    backward(net(torch.ones(1, 2)).sum())
    opt.step()
    opt.state = type(opt.state)(dict, reversed(opt.state.items()))
    rate = LearningRate(lambda ratio: ratio, 10, 5)
    made = Replica(net, opt, scheduler=None, scaler=None, rate=rate, progress=TrainingProgress())
    assert list(made.state()["optimizer"]["state"]) == list(range(12))
