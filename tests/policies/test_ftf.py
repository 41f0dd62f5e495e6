"""Finish-time fairness: the largest ratio is as small as brute force can make it."""

from __future__ import annotations

from itertools import product

import pytest

from ones.core.job import JobId
from ones.errors import InvalidSettingError
from ones.models.marginal_gain import GainCandidate
from ones.policies import create
from ones.policies.ftf import FairnessCandidate, fairest_sizes
from tests.policies.immediate_engine import ImmediateEngine


def candidate(i: int, steps: float, age: float, alone: float, power: float) -> FairnessCandidate:
    work = GainCandidate(JobId(f"j{i}"), "", i, 1, 6, steps, lambda gpus: 1.0 / gpus**power)
    return FairnessCandidate(work, age, alone)


CASES = [
    [(100.0, 0.0, 50.0, 0.9), (400.0, 100.0, 200.0, 0.7), (50.0, 300.0, 60.0, 0.5)],
    [(10.0, 0.0, 10.0, 1.0), (10.0, 0.0, 10.0, 1.0), (10.0, 0.0, 10.0, 1.0)],
    [(1000.0, 10.0, 300.0, 0.3), (20.0, 900.0, 30.0, 0.8), (300.0, 40.0, 90.0, 0.9)],
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("gpus", [3, 5, 8])
def test_the_largest_ratio_is_the_smallest_possible(
    case: list[tuple[float, float, float, float]], gpus: int
) -> None:
    jobs = [candidate(i, *numbers) for i, numbers in enumerate(case)]
    sizes = fairest_sizes(jobs, gpus, lambda owner, n: True, {})
    assert sum(sizes.values()) <= gpus

    def worst(chosen: tuple[int, ...]) -> float:
        return max(job.ratio(n) for job, n in zip(jobs, chosen, strict=True))

    best = min(worst(s) for s in product(range(1, 7), repeat=3) if sum(s) <= gpus)
    assert worst(tuple(sizes[job.work.job] for job in jobs)) == pytest.approx(best)


def test_with_too_few_gpus_the_job_that_is_furthest_behind_runs() -> None:
    jobs = [candidate(i, *numbers) for i, numbers in enumerate(CASES[2])]
    assert list(fairest_sizes(jobs, 1, lambda owner, n: True, {})) == ["j1"]
    assert list(fairest_sizes(jobs, 1, lambda owner, n: True, {JobId("j2"): 5.0})) == ["j2"]


def test_a_change_must_save_more_than_it_costs() -> None:
    work = GainCandidate(JobId("a"), "", 0, 1, 8, 100.0, lambda gpus: 1.0 / gpus)
    cheap = FairnessCandidate(work, 0.0, 100.0, gpus=4, change_seconds=0.1)
    dear = FairnessCandidate(work, 0.0, 100.0, gpus=4, change_seconds=50.0)
    for job, size in ((cheap, 8), (dear, 4)):
        assert fairest_sizes([job], 8, lambda owner, n: True, {}) == {"a": size}


def test_the_first_round_gives_unmeasured_jobs_at_most_what_they_ask_for() -> None:
    world = ImmediateEngine(create("ftf"), 8)
    world.submit("a", gpus=3)
    world.submit("b", at=1.0, gpus=2)
    world.until(600.0)
    assert world.sizes() == {"a": 3, "b": 2}


def test_an_oracle_is_needed_for_true_lengths() -> None:
    with pytest.raises(InvalidSettingError, match="needs an oracle"):
        create("ftf", knowledge="oracle")
