"""Mean time until joining workers train."""

from __future__ import annotations

import json

import pytest

from ones.core import JobId
from ones.policies.ones.predict.join_times import NEWEST, JoinTimes

A = JobId("a")


def test_the_join_time_is_zero_before_the_first_observation() -> None:
    assert JoinTimes().seconds == 0.0


def test_the_pause_and_rescales_without_joining_workers_do_not_count() -> None:
    join_times = JoinTimes()
    join_times.rescale_ordered(A, 0.0, grows=True)
    join_times.rescale_done(A, 30.0, pause=30.0)  # a restart: all stood still
    assert join_times.seconds == 0.0
    join_times.rescale_ordered(A, 100.0, grows=False)
    join_times.rescale_done(A, 150.0, pause=1.0)
    assert join_times.seconds == 0.0


def test_the_mean_converges_to_the_observed_time() -> None:
    join_times = JoinTimes()
    for start in range(0, 4000, 100):
        join_times.rescale_ordered(A, start, grows=True)
        join_times.rescale_done(A, start + 11.0, pause=1.0)
    assert join_times.seconds == pytest.approx(10.0, rel=0.01)


def test_replaced_rescales_and_ended_jobs_do_not_count() -> None:
    join_times = JoinTimes()
    join_times.rescale_ordered(A, 0.0, grows=True)
    join_times.rescale_ordered(A, 50.0, grows=True)
    join_times.rescale_done(A, 60.0, pause=0.0)
    assert join_times.seconds == NEWEST * 10.0
    join_times.rescale_ordered(A, 100.0, grows=True)
    join_times.forget(A)
    join_times.rescale_done(A, 900.0, pause=0.0)
    assert join_times.seconds == NEWEST * 10.0


def test_loaded_state_continues() -> None:
    join_times = JoinTimes()
    join_times.rescale_ordered(A, 0.0, grows=True)
    again = JoinTimes()
    again.load(json.loads(json.dumps(join_times.save())))
    for one in (join_times, again):
        one.rescale_done(A, 6.0, pause=1.0)
    assert again.save() == join_times.save()
