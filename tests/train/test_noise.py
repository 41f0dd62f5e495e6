"""The gradient noise scale of gradients whose noise is known."""

from __future__ import annotations

import pytest
import torch

from ones.train.noise import GradientNoise

SIZE, SPREAD = 400, 3.0  # numbers in a gradient; variance of one sample in each of them
TRUE = torch.full((SIZE,), 0.2, dtype=torch.float64)
SCALE = SPREAD * SIZE / float(TRUE.square().sum())  # S / |G|² = 75 samples


def mean_gradient(count: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    return torch.add(TRUE, noise, alpha=(SPREAD / count) ** 0.5)


@pytest.mark.parametrize("counts", [(8, 8), (30, 10, 4, 0)])
def test_workers_of_uneven_batches_give_it(counts: tuple[int, ...]) -> None:
    generator, noise = torch.Generator().manual_seed(1), GradientNoise(memory=0.99)
    total = sum(counts)
    for _ in range(300):
        own = {i: mean_gradient(n, generator) for i, n in enumerate(counts) if n}
        mean = sum((own[i] * counts[i] / total for i in own), torch.zeros_like(TRUE))
        squares = sum(float(g.square().sum()) for g in own.values())
        noise.workers(squares, counts, float(mean.square().sum()))
    assert noise.scale == pytest.approx(SCALE, rel=0.15)


def test_one_worker_compares_two_steps() -> None:
    generator, noise = torch.Generator().manual_seed(2), GradientNoise(memory=0.99)
    for _ in range(300):
        noise.keep([mean_gradient(16, generator)])
        noise.compare([mean_gradient(16, generator)], 16)
    assert noise.scale == pytest.approx(SCALE, rel=0.15)


def test_nothing_is_said_before_anything_is_known() -> None:
    noise = GradientNoise()
    assert noise.scale is None
    noise.workers(4.0, (8, 0), 4.0)  # one worker had all samples: nothing to compare
    noise.compare([TRUE], 8)
    assert noise.scale is None
