"""How long jobs are here as a rule, by what was seen."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core import JobId
from ones.policies.ones.visits import GUESSED_SECONDS, REMEMBERED, Visits

A, B = JobId("a"), JobId("b")


def test_before_anything_is_known_it_is_guessed() -> None:
    assert Visits().usual_seconds(1e9) == GUESSED_SECONDS


def test_many_that_took_as_long_outweigh_the_guess() -> None:
    visits = Visits()
    for number in range(1000):
        visits.started(JobId(str(number)), 0.0)
        visits.ended(JobId(str(number)), 7200.0)
    assert visits.usual_seconds(7200.0) == pytest.approx(7200, rel=0.03)


def test_who_is_still_here_counts_as_long_as_it_has_been() -> None:
    """Or only the short ones would count in the beginning: they end first."""
    visits = Visits()
    visits.started(A, 0.0)
    assert visits.usual_seconds(10_000.0) > visits.usual_seconds(1000.0)
    before = visits.usual_seconds(10_000.0)
    visits.ended(A, 10_000.0)
    assert visits.usual_seconds(10_000.0) == pytest.approx(before), "no leap at its end"


def test_a_restart_is_the_same_visit_and_who_never_ran_made_none() -> None:
    visits = Visits()
    visits.started(A, 0.0)
    visits.started(A, 900.0)
    visits.ended(A, 1000.0)
    other = Visits()
    other.started(A, 0.0)
    other.ended(A, 1000.0)
    other.ended(B, 5000.0)
    assert visits.usual_seconds(0.0) == other.usual_seconds(0.0)


def test_what_was_long_ago_is_forgotten() -> None:
    visits = Visits()
    for number in range(4000):
        visits.started(JobId(str(number)), 0.0)
        visits.ended(JobId(str(number)), 100_000.0 if number < 3000 else 50.0)
    assert REMEMBERED < 1000
    assert visits.usual_seconds(0.0) < 1000


@given(st.lists(st.floats(0.001, 1e6), max_size=50))
def test_it_lies_between_the_shortest_and_the_longest(lengths: list[float]) -> None:
    visits = Visits()
    for number, length in enumerate(lengths):
        visits.started(JobId(str(number)), 0.0)
        visits.ended(JobId(str(number)), length)
    every = [*lengths, GUESSED_SECONDS]
    assert min(every) * 0.999 <= visits.usual_seconds(1e6) <= max(every) * 1.001


def test_it_is_kept_over_a_restart() -> None:
    visits = Visits()
    visits.started(A, 10.0)
    visits.started(B, 10.0)
    visits.ended(B, 99.0)
    again = Visits()
    again.load(json.loads(json.dumps(visits.save())))
    assert again.usual_seconds(500.0) == visits.usual_seconds(500.0)
