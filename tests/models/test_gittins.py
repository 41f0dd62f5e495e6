"""The Gittins index, against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.models.gittins import SAMPLE, GittinsIndex


def by_definition(sample: list[float], attained: float, quantum: float) -> float:
    """Pr(S - a <= quantum | S > a) / E[min(S - a, quantum) | S > a], one by one."""
    longer = [s for s in sample if s > attained]
    if not longer:
        return 0.0
    chance = sum(s - attained <= quantum for s in longer) / len(longer)
    return chance / (sum(min(s - attained, quantum) for s in longer) / len(longer))


@given(
    sample=st.lists(st.integers(1, 5000).map(float), min_size=1, max_size=30),
    attained=st.integers(0, 6000).map(float),
    quantum=st.sampled_from([10.0, 500.0, 3250.0]),
)
def test_it_equals_its_definition(sample: list[float], attained: float, quantum: float) -> None:
    gittins = GittinsIndex(quantum)
    for length in sample:
        gittins.learn(length)
    assert gittins.index(attained) == pytest.approx(by_definition(sample, attained, quantum))


def test_a_job_past_the_short_ones_is_worth_less_than_a_new_one() -> None:
    gittins = GittinsIndex(100.0)
    for length in (50.0,) * 9 + (10_000.0,):
        gittins.learn(length)
    assert gittins.index(0.0) > gittins.index(60.0)
    assert gittins.index(9_950.0) > gittins.index(60.0)  # it is about to end
    assert gittins.index(10_000.0) == 0.0  # no job was ever longer


def test_only_the_latest_lengths_count() -> None:
    gittins = GittinsIndex(100.0)
    for length in np.linspace(1.0, 2.0, SAMPLE):
        gittins.learn(float(length))
    for _ in range(SAMPLE):
        gittins.learn(500.0)
    assert gittins.index(450.0) == pytest.approx(1 / 50)
    assert gittins.index(10.0) == pytest.approx(by_definition([500.0], 10.0, 100.0))


def test_cells_are_where_the_index_is_looked_up() -> None:
    gittins = GittinsIndex(100.0, cells=4)
    for length in (30.0, 80.0, 200.0):
        gittins.learn(length)
    assert gittins.cell(49.9) == 1
    assert gittins.of_cell(1) == gittins.index(25.0)


def test_a_job_that_ends_at_once_has_a_finite_index() -> None:
    """What it would still cost is lost in the sum of all lengths."""
    for earlier in ([], [0.1, 0.3, 454.17, 2893.29] * 9):
        gittins = GittinsIndex(1000.0)
        for length in (*earlier, float(np.nextafter(1000.0, 2000.0))):
            gittins.learn(length)
        assert 0.0 < gittins.index(1000.0) < 1e12
