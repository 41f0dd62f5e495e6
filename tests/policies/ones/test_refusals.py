"""A size that was refused is not asked for again at once, nor for ever less."""

from __future__ import annotations

import json

from ones.core import JobId
from ones.policies.ones.refusals import FIRST_WAIT, LONGEST_WAIT, Refusals

A = JobId("a")


def test_half_of_what_was_refused_is_asked_for_until_the_wait_is_over() -> None:
    refusals = Refusals()
    refusals.asked(A, 16)
    assert refusals.most(A, 0.0) is None
    refusals.refused(A, held=2, now=100.0)
    assert refusals.most(A, 100.0 + FIRST_WAIT - 1) == 8
    assert refusals.most(A, 100.0 + FIRST_WAIT) is None


def test_waits_grow_and_what_it_holds_is_never_refused() -> None:
    refusals, now = Refusals(), 0.0
    for wait in (FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT):
        refusals.asked(A, 8)
        refusals.refused(A, held=6, now=now)
        assert refusals.most(A, now + wait - 1) == 6
        now += wait
        assert refusals.most(A, now) is None
    for _ in range(20):
        refusals.refused(A, held=6, now=now)
    assert refusals.most(A, now + LONGEST_WAIT) is None


def test_a_size_that_came_true_ends_it_and_memory_survives() -> None:
    refusals, other = Refusals(), Refusals()
    refusals.asked(A, 8)
    refusals.refused(A, held=1, now=0.0)
    other.load(json.loads(json.dumps(refusals.save())))
    assert other.most(A, 1.0) == 4
    other.asked(A, 4)
    other.granted(A)  # no more than was allowed: the next refusal still waits longer
    assert other.most(A, 1.0) == 4
    other.asked(A, 8)
    other.granted(A)
    assert other.most(A, 1.0) is None
    refusals.forget(A)
    assert refusals.most(A, 1.0) is None
