"""Fingerprints, which show in each step whether the workers train alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ones.train.comparison import WorkerComparison
from ones.train.learning_rate import LearningRate
from ones.train.progress import TrainingProgress
from ones.train.replica import Replica

PARTS = 3  # of 4,096 numbers, in the largest parameter


def comparison_of(*values: Tensor) -> tuple[WorkerComparison, list[nn.Parameter], Replica]:
    model = nn.Module()
    parameters = [nn.Parameter(value.clone()) for value in values]
    for index, p in enumerate(parameters):
        model.register_parameter(f"p{index}", p)
    replica = Replica(
        model,
        torch.optim.SGD(parameters, lr=0.1),
        scheduler=None,
        scaler=None,
        rate=LearningRate(lambda ratio: ratio, 1),
        progress=TrainingProgress(),
    )
    return WorkerComparison(replica), parameters, replica


def marks(comparison: WorkerComparison, replica: Replica, steps: int) -> list[float | Tensor]:
    found = []
    for step in range(steps):
        replica.progress.step = step
        found.append(comparison.fingerprint())
    return found


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3),
        torch.ones(()),
        torch.ones(9001),
        torch.ones(7, dtype=torch.bfloat16),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(4, 6)[:, ::2],  # has gaps in memory
    ],
    ids=["small", "number", "parts", "bfloat16", "channels_last", "gaps"],
)
def test_a_change_of_one_number_shows_within_a_few_steps(value: Tensor) -> None:
    first, _, one = comparison_of(value, torch.zeros(2))
    second, parameters, other = comparison_of(value, torch.zeros(2))
    steps = 2 * PARTS
    assert marks(first, one, steps) == marks(second, other, steps)
    with torch.no_grad():
        index = tuple(size - 1 for size in value.shape)
        parameters[0][index] = 0.5
    assert marks(first, one, steps) != marks(second, other, steps)
    parameters[0].data = value.clone()  # at another address
    assert marks(first, one, steps) == marks(second, other, steps)
