"""SLAQ: its curves, and its greedy division against brute force."""

from __future__ import annotations

from itertools import product
from math import exp

import pytest

from ones.core.job import JobId
from ones.models.marginal_gain import marginal_gains
from ones.models.quality_curve import fit_quality
from ones.policies import create
from ones.policies.slaq import QualityCandidate
from tests.policies.immediate_engine import ImmediateEngine


def test_a_sublinear_curve_is_recovered() -> None:
    losses = [1.0 / (0.01 * k * k + 0.2 * k + 0.5) + 0.3 for k in range(1, 21)]
    curve = fit_quality(losses)
    assert curve is not None
    for k in (1, 20, 40):
        assert curve.at(k) == pytest.approx(1.0 / (0.01 * k * k + 0.2 * k + 0.5) + 0.3, rel=0.02)


def test_an_exponential_curve_is_recovered() -> None:
    losses = [2.0 * exp(-0.3 * k) + 0.1 for k in range(1, 21)]
    curve = fit_quality(losses)
    assert curve is not None
    assert not curve.sublinear
    assert curve.at(30) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("losses", [[], [1.0, 0.5], [1.0, float("nan"), 0.5], [1.0, -1.0, 0.5]])
def test_too_few_or_invalid_losses_have_no_curve(losses: list[float]) -> None:
    assert fit_quality(losses) is None


def candidate(name: str, number: int, epochs: float, seconds: float) -> QualityCandidate:
    """A job after some epochs of the same curve, with diminishing returns of GPUs."""
    curve = fit_quality([3.0 * exp(-0.2 * k) + 0.2 for k in range(1, 15)])
    assert curve is not None
    return QualityCandidate(
        job=JobId(name),
        owner="",
        number=number,
        least=1,
        most=8,
        steps=100.0,
        step_seconds=lambda gpus: seconds / gpus**0.7,
        curve=curve,
        largest_change=0.5,
        epochs=epochs,
        steps_per_epoch=10,
        round_seconds=60.0,
    )


@pytest.mark.parametrize("epochs", [(1.0, 5.0, 9.0), (2.0, 2.0, 2.0), (14.0, 1.0, 3.0)])
def test_the_division_lowers_the_summed_loss_as_much_as_any(epochs: tuple[float, ...]) -> None:
    jobs = [candidate(f"j{i}", i, e, 4.0 + i) for i, e in enumerate(epochs)]
    found = marginal_gains(jobs, 8, lambda owner, gpus: True)

    def total(sizes: tuple[int, ...]) -> float:
        return sum(job.drop(n) for job, n in zip(jobs, sizes, strict=True))

    best = max(total(s) for s in product(range(1, 7), repeat=3) if sum(s) == 8)
    assert total(tuple(found[job.job] for job in jobs)) == pytest.approx(best, rel=1e-6)


def test_a_young_job_gets_more_gpus_than_one_that_has_nearly_converged() -> None:
    young, old = candidate("young", 1, 1.0, 5.0), candidate("old", 0, 14.0, 5.0)
    sizes = marginal_gains([old, young], 6, lambda owner, gpus: True)
    assert sizes[young.job] > sizes[old.job] >= 1


def test_jobs_without_losses_start_at_the_requested_size() -> None:
    world = ImmediateEngine(create("slaq"), 8)
    world.submit("a", gpus=3)
    assert world.sizes() == {"a": 3}
    assert world.note("a") == "Started on 3 GPUs, batch 64: its loss cannot be predicted yet."
