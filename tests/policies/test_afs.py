"""AFS: its rule for two jobs against the completion times, and its tournament."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core.job import JobId
from ones.models.marginal_gain import GainCandidate
from ones.policies import create
from ones.policies.afs import ShareCandidate, elastic_shares, wins
from tests.policies.immediate_engine import ImmediateEngine


def share(i: int, length: float, power: float, gpus: int = 0) -> ShareCandidate:
    work = GainCandidate(JobId(f"j{i}"), "", i, 1, 8, length, lambda n: 1.0 / n**power)
    return ShareCandidate(work, 0.0, length, gpus)


def total(sooner: ShareCandidate, later: ShareCandidate, first: int, second: int) -> float:
    """Sum of completion times if the shorter job has `first` GPUs and the longer one `second`.

    After the shorter job the longer one has one GPU more than now, as the publication assumes of
    the future; work is counted in what one GPU does in a second.
    """
    ends = sooner.length / sooner.speed(first)
    left = max(0.0, later.length - ends * later.speed(second))
    return ends + ends + left / later.speed(later.gpus + 1)


@given(
    lengths=st.tuples(st.floats(10, 1000), st.floats(10, 1000)),
    powers=st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)),
    gpus=st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_of_two_jobs_the_gpu_goes_where_the_sum_of_completion_times_is_smaller(
    lengths: tuple[float, float], powers: tuple[float, float], gpus: tuple[int, int]
) -> None:
    one, other = (share(i, lengths[i], powers[i], gpus[i]) for i in range(2))
    sooner, later = (one, other) if one.end <= other.end else (other, one)
    if abs(sooner.end - later.end) < 1e-6 * later.end:
        return
    to_sooner = total(sooner, later, sooner.gpus + 1, later.gpus)
    to_later = total(sooner, later, sooner.gpus, later.gpus + 1)
    if later.length / later.speed(later.gpus + 1) < sooner.end:
        return  # with the GPU the longer job would end first: outside the publication's case
    if abs(to_sooner - to_later) > 1e-9 * to_sooner:
        assert wins(later, sooner) == (to_later < to_sooner)


def test_every_job_has_a_gpu_before_any_has_two() -> None:
    sizes = elastic_shares([share(i, 10.0 * i, 1.0) for i in range(1, 5)], 4, lambda o, n: True)
    assert sizes == {"j1": 1, "j2": 1, "j3": 1, "j4": 1}


def test_with_too_few_gpus_the_shortest_jobs_run() -> None:
    sizes = elastic_shares([share(i, 50.0 - i, 1.0) for i in range(5)], 2, lambda o, n: True)
    assert sizes == {"j3": 1, "j4": 1}


def test_a_job_that_does_not_scale_leaves_the_gpus_to_others() -> None:
    flat = share(0, 10.0, 0.0)
    sizes = elastic_shares([flat, share(1, 100.0, 0.9)], 8, lambda owner, gpus: True)
    assert sizes == {"j0": 1, "j1": 7}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_all_gpus_are_given_away_while_jobs_gain(count: int) -> None:
    sizes = elastic_shares([share(i, 10.0, 0.8) for i in range(count)], 16, lambda o, n: True)
    assert sum(sizes.values()) == min(16, 8 * count)


def test_a_new_job_takes_gpus_of_running_ones() -> None:
    world = ImmediateEngine(create("afs", interval=0.0), 4)
    world.submit("a", gpus=4)
    assert world.sizes() == {"a": 4}
    world.submit("b", gpus=4)
    assert sum(world.sizes().values()) == 4
    assert world.sizes()["b"] >= 1
