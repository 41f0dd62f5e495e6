"""Mean residence time of jobs."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core import JobId
from ones.policies.ones.predict.residence_times import GUESSED_SECONDS, REMEMBERED, ResidenceTimes

A, B = JobId("a"), JobId("b")


def in_turn(lengths: Iterable[float]) -> tuple[ResidenceTimes, float]:
    """Runs jobs one after the other; returns the times and the end of the last job."""
    residence_times, now = ResidenceTimes(), 0.0
    for number, length in enumerate(lengths):
        residence_times.started(JobId(str(number)), now)
        now += length
        residence_times.ended(JobId(str(number)), now)
    return residence_times, now


def side_by_side(lengths: Iterable[float], gap: float) -> tuple[ResidenceTimes, float]:
    """Starts a job every `gap` seconds; returns the times and the last start."""
    residence_times, now = ResidenceTimes(), 0.0
    ends: list[tuple[float, JobId]] = []
    for number, length in enumerate(lengths):
        now = number * gap
        while ends and ends[0][0] <= now:
            end, job = heapq.heappop(ends)
            residence_times.ended(job, end)
        residence_times.started(JobId(str(number)), now)
        heapq.heappush(ends, (now + length, JobId(str(number))))
    return residence_times, now


def test_the_first_mean_is_a_guess() -> None:
    assert ResidenceTimes().mean_seconds(1e9) == GUESSED_SECONDS


def test_many_ended_jobs_outweigh_the_guess() -> None:
    residence_times, now = in_turn([7200.0] * 1000)
    assert residence_times.mean_seconds(now) == pytest.approx(7200, rel=0.03)


def test_running_jobs_count_with_their_time_so_far() -> None:
    """Otherwise only short jobs would count at first, because they end first."""
    residence_times = ResidenceTimes()
    residence_times.started(A, 0.0)
    assert residence_times.mean_seconds(10_000.0) > residence_times.mean_seconds(1000.0)
    before = residence_times.mean_seconds(10_000.0)
    residence_times.ended(A, 10_000.0)
    assert GUESSED_SECONDS < residence_times.mean_seconds(10_000.0) < before


def test_many_new_jobs_do_not_shorten_the_mean() -> None:
    residence_times = ResidenceTimes()
    for number in range(100):
        residence_times.started(JobId(str(number)), 0.0)
    assert residence_times.mean_seconds(1.0) >= GUESSED_SECONDS


@pytest.mark.parametrize("gap", [5000.0, 100.0, 2.0], ids=["1 job", "50 jobs", "2,500 jobs"])
def test_the_mean_is_right_for_any_number_of_concurrent_jobs(gap: float) -> None:
    lengths = np.random.default_rng(1).exponential(5000.0, size=10_000)
    residence_times, now = side_by_side(lengths, gap)
    assert residence_times.mean_seconds(now) == pytest.approx(5000, rel=0.25)


def test_a_restart_continues_the_residence_and_jobs_that_never_ran_do_not_count() -> None:
    residence_times = ResidenceTimes()
    residence_times.started(A, 0.0)
    residence_times.started(A, 900.0)
    residence_times.ended(A, 1000.0)
    residence_times.ended(B, 5000.0)
    once, _ = in_turn([1000.0])
    assert residence_times.mean_seconds(5000.0) == once.mean_seconds(5000.0)


def test_old_jobs_are_forgotten() -> None:
    assert REMEMBERED < 500
    residence_times, now = in_turn([100_000.0] * 3000 + [50.0] * 2000)
    assert residence_times.mean_seconds(now) < 100


@given(st.lists(st.floats(0.001, 1e6), max_size=50))
def test_the_mean_is_between_the_shortest_and_the_longest(lengths: list[float]) -> None:
    residence_times, now = in_turn(lengths)
    every = [*lengths, GUESSED_SECONDS]
    assert min(every) * 0.999 <= residence_times.mean_seconds(now) <= max(every) * 1.5


@given(st.lists(st.floats(0.001, 1e6), max_size=20), st.floats(0.1, 1e4), st.floats(0.0, 1e7))
def test_the_mean_is_saved_and_loaded(lengths: list[float], gap: float, later: float) -> None:
    residence_times, now = side_by_side(lengths, gap)
    again = ResidenceTimes()
    again.load(json.loads(json.dumps(residence_times.save())))
    assert again.mean_seconds(now + later) == residence_times.mean_seconds(now + later)
