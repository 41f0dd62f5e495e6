"""The gradient noise scale of gradients with known noise."""

from __future__ import annotations

import pytest
import torch

from ones.train.gradient_noise import GradientNoise, preconditioner_of, sample_sizes

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
        noise.add_workers(squares, counts, float(mean.square().sum()))
    assert noise.scale == pytest.approx(SCALE, rel=0.15)


def test_one_worker_compares_two_steps() -> None:
    generator, noise = torch.Generator().manual_seed(2), GradientNoise(memory=0.99)
    for _ in range(300):
        noise.keep([mean_gradient(16, generator)])
        noise.compare([mean_gradient(16, generator)], 16)
    assert noise.scale == pytest.approx(SCALE, rel=0.15)


def test_gradients_may_be_changed_in_place() -> None:
    """Clipping does so, after they were kept."""
    noise = GradientNoise(memory=0.5)
    kept, new = torch.ones(3), torch.full((3,), 0.5)
    noise.keep([kept])
    kept.mul_(0.1)
    noise.compare([new], 4)
    # |old|² = 3, |new|² = 0.75, their product 1.5: S = (1.875 - 1.5) * 4
    assert noise.scale == pytest.approx(1.5 / 1.5)


def test_a_large_gradient_is_measured_in_part_and_few_bytes_are_kept() -> None:
    large, small = torch.zeros(3_000_000), torch.zeros(10)
    sizes = sample_sizes([large, small])
    assert sizes[1] == 1
    assert 8 * sum(sizes) <= 0.7 * 3_000_010  # bytes kept per parameter; a copy would be 4


def test_nothing_is_said_before_anything_is_known() -> None:
    noise = GradientNoise()
    assert noise.scale is None
    noise.add_workers(4.0, (8, 0), 4.0)  # one worker had all samples: nothing to compare
    noise.compare([TRUE], 8)
    assert noise.scale is None


def test_for_adam_the_noise_is_that_of_its_updates() -> None:
    """Gradients of very different sizes: Adam moves all parameters alike, and so they count."""
    sizes = torch.logspace(-3, 3, SIZE, dtype=torch.float64)
    generator, noise = torch.Generator().manual_seed(3), GradientNoise(memory=0.99)
    p = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    adam = torch.optim.AdamW([p], lr=1e-9)
    preconditioner = preconditioner_of(adam)
    assert preconditioner is not None
    for _ in range(400):
        for step in range(2):
            p.grad = sizes * mean_gradient(16, generator)
            if adam.state:
                measured = [p.grad / preconditioner(p, p.numel())]
                noise.compare(measured, 16) if step else noise.keep(measured)
            adam.step()
    assert noise.scale == pytest.approx(SCALE, rel=0.15)
    assert preconditioner_of(torch.optim.SGD([p], lr=0.1)) is None
