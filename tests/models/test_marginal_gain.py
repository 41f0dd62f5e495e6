"""GPUs where they save most: worked cases, and brute force where greed is known to be right."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core.job import JobId
from ones.models.marginal_gain import GainCandidate, marginal_gains
from ones.models.strong_scaling import KindMeasurements, fit_step_seconds


def linear(gpus: int) -> float:
    return 1.0 / gpus


def claim(name: str, steps: float, *, most: int = 64, least: int = 1) -> GainCandidate:
    return GainCandidate(JobId(name), "", int(name), least, most, steps, linear)


def no_limit(owner: str, gpus: int) -> bool:
    return True


def test_the_gain_of_a_job_that_scales_perfectly_is_r_by_c_c_plus_1() -> None:
    for gpus in (1, 2, 5):
        assert claim("0", 120.0).gain(gpus, gpus + 1) == pytest.approx(120.0 / (gpus * (gpus + 1)))


def test_all_spare_gpus_go_to_the_job_a_hundred_times_longer() -> None:
    sizes = marginal_gains([claim("0", 100.0), claim("1", 10_000.0)], 8, no_limit)
    assert sizes == {"0": 1, "1": 7}


@given(steps=st.lists(st.integers(1, 1000), min_size=1, max_size=3), gpus=st.integers(3, 8))
def test_where_gains_fall_it_is_the_best_division_there_is(steps: list[int], gpus: int) -> None:
    """With 1/f(c) = 1/c every gain is smaller than the one before: greed finds the optimum."""
    claims = [claim(str(i), float(s)) for i, s in enumerate(steps)]
    found = marginal_gains(claims, gpus, no_limit)

    def seconds(sizes: tuple[int, ...]) -> float:
        return sum(c.steps * linear(n) for c, n in zip(claims, sizes, strict=True))

    every = product(range(1, gpus + 1), repeat=len(claims))
    best = min(seconds(sizes) for sizes in every if sum(sizes) <= gpus)
    assert seconds(tuple(found[c.job] for c in claims)) == pytest.approx(best)


def test_more_jobs_than_gpus_get_one_each_in_their_order() -> None:
    claims = [claim(str(i), 10.0 * (i + 1)) for i in range(5)]
    assert marginal_gains(claims, 3, no_limit) == {"0": 1, "1": 1, "2": 1}


def test_a_job_that_one_more_gpu_would_slow_does_not_get_it() -> None:
    slow = GainCandidate(JobId("0"), "", 0, 1, 8, 100.0, lambda gpus: 1.0 + (gpus > 2) - 0.1 * gpus)
    assert marginal_gains([slow], 8, no_limit) == {"0": 2}


def test_looking_ahead_leaps_over_the_step_at_the_edge_of_a_node() -> None:
    stairs = {1: 1.0, 2: 0.6, 3: 0.5, 4: 0.4, 5: 0.45, 6: 0.44, 7: 0.43, 8: 0.2}
    job = GainCandidate(JobId("0"), "", 0, 1, 8, 100.0, stairs.__getitem__)
    assert marginal_gains([job], 8, no_limit) == {"0": 4}
    assert marginal_gains([job], 8, no_limit, jump=4) == {"0": 8}
    assert marginal_gains([job], 7, no_limit, jump=4) == {"0": 4}


def test_an_owner_s_limit_holds() -> None:
    used = 0

    def take(owner: str, gpus: int) -> bool:
        nonlocal used
        if used + gpus > 3:
            return False
        used += gpus
        return True

    assert sum(marginal_gains([claim("0", 10.0), claim("1", 9.0)], 8, take).values()) == 3


def test_the_speed_of_a_kind_is_recovered_from_enough_sizes() -> None:
    def truth(gpus: int, spread: bool, batch: int) -> float:
        return 0.002 * batch / gpus + 0.05 + 0.03 * (gpus - 1) / gpus + 0.02 * spread + 0.001 * gpus

    steps = {
        (c, c > 4, batch): truth(c, c > 4, batch)
        for c, batch in ((1, 64), (2, 64), (3, 128), (4, 128), (6, 64), (8, 256), (12, 256))
    }
    seconds = fit_step_seconds(KindMeasurements(steps=steps), 512, 4)
    for gpus in (1, 2, 4, 5, 8, 16):
        assert seconds(gpus) == pytest.approx(truth(gpus, gpus > 4, 512), rel=1e-6)


def test_one_measured_size_is_filled_up_with_a_prior() -> None:
    kind = KindMeasurements(parameter_bytes=500_000_000, steps={(1, False, 128): 0.4})
    seconds = fit_step_seconds(kind, 128, 4)
    assert seconds(1) == pytest.approx(0.4, rel=0.05)
    assert seconds(1) > seconds(2) > seconds(4)  # computing is divided
    assert seconds(8) > 0.2 + 500e6 * 2 * 7 / 8 / 9e9 * 0.8  # half is fixed, and the network


def test_a_fit_that_explains_everything_by_synchronising_gives_one_gpu_some_time() -> None:
    step_seconds = fit_step_seconds(
        KindMeasurements(steps={(2, False, 1): 3.0, (2, False, 256): 0.1}), 64, 4
    )
    assert step_seconds(1) >= 1e-4
