"""How long the GPUs of a job that grows wait for those who will train on them."""

from __future__ import annotations

import json

import pytest

from ones.core import JobId
from ones.policies.ones.newcomers import NEWEST, Newcomers

A = JobId("a")


def test_nothing_is_expected_before_the_first() -> None:
    assert Newcomers().seconds == 0.0


def test_the_pause_is_no_part_of_it_and_a_change_without_newcomers_says_nothing() -> None:
    newcomers = Newcomers()
    newcomers.ordered(A, 0.0, some=True)
    newcomers.came(A, 30.0, pause=30.0)  # a restart: all stood still
    assert newcomers.seconds == 0.0
    newcomers.ordered(A, 100.0, some=False)
    newcomers.came(A, 150.0, pause=1.0)
    assert newcomers.seconds == 0.0


def test_what_is_expected_comes_to_what_is_seen() -> None:
    newcomers = Newcomers()
    for start in range(0, 4000, 100):
        newcomers.ordered(A, start, some=True)
        newcomers.came(A, start + 11.0, pause=1.0)
    assert newcomers.seconds == pytest.approx(10.0, rel=0.01)


def test_an_order_that_was_replaced_or_whose_job_is_gone_is_not_waited_for() -> None:
    newcomers = Newcomers()
    newcomers.ordered(A, 0.0, some=True)
    newcomers.ordered(A, 50.0, some=True)
    newcomers.came(A, 60.0, pause=0.0)
    assert newcomers.seconds == NEWEST * 10.0
    newcomers.ordered(A, 100.0, some=True)
    newcomers.forget(A)
    newcomers.came(A, 900.0, pause=0.0)
    assert newcomers.seconds == NEWEST * 10.0


def test_what_was_saved_goes_on_as_before() -> None:
    newcomers = Newcomers()
    newcomers.ordered(A, 0.0, some=True)
    again = Newcomers()
    again.load(json.loads(json.dumps(newcomers.save())))
    for one in (newcomers, again):
        one.came(A, 6.0, pause=1.0)
    assert again.save() == newcomers.save()
