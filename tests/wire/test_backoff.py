"""Pauses between attempts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ones.wire.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.1, 0.5, lambda: 1.0)
    assert [round(backoff.next(), 3) for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    backoff.reset()
    assert backoff.next() == 0.1


def test_a_pause_is_drawn_from_its_upper_half() -> None:
    draws: Iterator[float] = iter((0.0, 0.5))
    backoff = Backoff(1.0, 1.0, lambda: next(draws))
    assert [backoff.next(), backoff.next()] == [0.5, 0.75]


def test_two_workers_do_not_pause_alike_and_the_script_s_random_state_stays() -> None:
    random.seed(1)
    before = random.getstate()
    pauses = {Backoff(1.0, 8.0).next() for _ in range(20)}
    assert len(pauses) > 1
    assert random.getstate() == before
