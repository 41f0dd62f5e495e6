"""The exact division is no worse than any other; the greedy one at least is one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.models.allocation import (
    Flags,
    Floats,
    Ints,
    exact,
    greedy,
    next_sizes,
    total,
)


@st.composite
def divisions(draw: st.DrawFn) -> tuple[Floats, Ints, Ints, int, Flags]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    jobs, largest = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    least = rng.integers(1, largest + 1, jobs).astype(np.int32)
    most = np.maximum(least, rng.integers(1, largest + 1, jobs)).astype(np.int32)
    most[rng.random(jobs) < 0.2] = 0
    table = rng.integers(0, 50, (jobs, largest + 1)).astype(float)
    must = (rng.random(jobs) < 0.2) & (most > 0)
    return table, least, most, draw(st.integers(1, 12)), must


@settings(max_examples=200)
@given(divisions(), st.booleans())
def test_exact_equals_brute_force(
    given_: tuple[Floats, Ints, Ints, int, Flags], use_all: bool
) -> None:
    table, least, most, gpus, must = given_
    sizes = [
        ([] if must[j] else [0]) + list(range(least[j], most[j] + 1)) for j in range(len(table))
    ]
    all_ = [np.array(c) for c in product(*sizes) if sum(c) <= gpus]
    if not all_:
        with pytest.raises(ValueError, match="do not fit"):
            exact(table, least, most, gpus, must_run=must, use_all=use_all)
        return
    best = min((-c.sum() if use_all else 0, total(table, c)) for c in all_)
    found = exact(table, least, most, gpus, must_run=must, use_all=use_all)
    assert any((found == c).all() for c in all_)
    assert (-found.sum() if use_all else 0, total(table, found)) == best


@given(divisions())
def test_greedy_keeps_the_limits_and_is_no_better_than_exact(
    given_: tuple[Floats, Ints, Ints, int, Flags],
) -> None:
    table, least, most, gpus, _ = given_
    found = greedy(table, least, most, gpus)
    assert found.sum() <= gpus
    assert (((found == 0) | (found >= least)) & (found <= most)).all()
    assert total(table, found) >= total(table, exact(table, least, most, gpus, use_all=False))


def best_next_sizes(table: Floats, least: Ints, most: Ints) -> Ints:
    """As `next_sizes`, by trying all of them; of equals the smallest."""
    sizes = np.zeros(table.shape, np.int32)
    for job in range(len(table)):
        for now in (0, *range(least[job], most[job])):
            larger = range(max(now + 1, least[job]), most[job] + 1)
            if larger:
                cost = table[job]
                sizes[job, now] = min(larger, key=lambda c: (cost[c] - cost[now]) / (c - now))
        sizes[job, most[job] :] = most[job]
    return sizes


@given(divisions())
def test_the_next_size_adds_least_per_gpu(given_: tuple[Floats, Ints, Ints, int, Flags]) -> None:
    table, least, most, _, _ = given_
    assert (next_sizes(table, least, most) == best_next_sizes(table, least, most)).all()
