"""How long jobs are here as a rule, by what was seen."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core import JobId
from ones.policies.ones.visits import GUESSED_SECONDS, REMEMBERED, Visits

A, B = JobId("a"), JobId("b")


def in_turn(lengths: Iterable[float]) -> tuple[Visits, float]:
    """One after the other; and when the last one has ended."""
    visits, now = Visits(), 0.0
    for number, length in enumerate(lengths):
        visits.started(JobId(str(number)), now)
        now += length
        visits.ended(JobId(str(number)), now)
    return visits, now


def side_by_side(lengths: Iterable[float], gap: float) -> tuple[Visits, float]:
    """One every `gap` seconds; and when the last one has come."""
    visits, now = Visits(), 0.0
    ends: list[tuple[float, JobId]] = []
    for number, length in enumerate(lengths):
        now = number * gap
        while ends and ends[0][0] <= now:
            end, job = heapq.heappop(ends)
            visits.ended(job, end)
        visits.started(JobId(str(number)), now)
        heapq.heappush(ends, (now + length, JobId(str(number))))
    return visits, now


def test_before_anything_is_known_it_is_guessed() -> None:
    assert Visits().usual_seconds(1e9) == GUESSED_SECONDS


def test_many_that_took_as_long_outweigh_the_guess() -> None:
    visits, now = in_turn([7200.0] * 1000)
    assert visits.usual_seconds(now) == pytest.approx(7200, rel=0.03)


def test_who_is_still_here_counts_with_the_time_so_far() -> None:
    """Or only the short ones would count in the beginning: they end first."""
    visits = Visits()
    visits.started(A, 0.0)
    assert visits.usual_seconds(10_000.0) > visits.usual_seconds(1000.0)
    before = visits.usual_seconds(10_000.0)
    visits.ended(A, 10_000.0)
    assert GUESSED_SECONDS < visits.usual_seconds(10_000.0) < before


def test_many_that_have_just_begun_are_not_short() -> None:
    visits = Visits()
    for number in range(100):
        visits.started(JobId(str(number)), 0.0)
    assert visits.usual_seconds(1.0) >= GUESSED_SECONDS


@pytest.mark.parametrize("gap", [5000.0, 100.0, 2.0], ids=["1 job", "50 jobs", "2,500 jobs"])
def test_it_is_right_however_many_are_here_at_a_time(gap: float) -> None:
    lengths = np.random.default_rng(1).exponential(5000.0, size=10_000)
    visits, now = side_by_side(lengths, gap)
    assert visits.usual_seconds(now) == pytest.approx(5000, rel=0.25)


def test_a_restart_is_the_same_visit_and_who_never_ran_made_none() -> None:
    visits = Visits()
    visits.started(A, 0.0)
    visits.started(A, 900.0)
    visits.ended(A, 1000.0)
    visits.ended(B, 5000.0)
    once, _ = in_turn([1000.0])
    assert visits.usual_seconds(5000.0) == once.usual_seconds(5000.0)


def test_what_was_long_ago_is_forgotten() -> None:
    assert REMEMBERED < 500
    visits, now = in_turn([100_000.0] * 3000 + [50.0] * 2000)
    assert visits.usual_seconds(now) < 100


@given(st.lists(st.floats(0.001, 1e6), max_size=50))
def test_it_lies_between_the_shortest_and_the_longest(lengths: list[float]) -> None:
    visits, now = in_turn(lengths)
    every = [*lengths, GUESSED_SECONDS]
    assert min(every) * 0.999 <= visits.usual_seconds(now) <= max(every) * 1.5


@given(st.lists(st.floats(0.001, 1e6), max_size=20), st.floats(0.1, 1e4), st.floats(0.0, 1e7))
def test_it_is_kept_over_a_restart(lengths: list[float], gap: float, later: float) -> None:
    visits, now = side_by_side(lengths, gap)
    again = Visits()
    again.load(json.loads(json.dumps(visits.save())))
    assert again.usual_seconds(now + later) == visits.usual_seconds(now + later)
