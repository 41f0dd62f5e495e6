"""R_j: the paper's four rules, with numbers from its formulas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.policies.ones.limits import (
    ArrivalRate,
    BatchLimits,
    after_epoch,
    after_rejection,
    cap,
    start_limit,
)
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.jobs import a_job, told


def limits(**settings: Any) -> BatchLimits:
    return BatchLimits(OnesSettings(**settings))


def test_start_a_job_is_held_to_one_gpu_until_its_warm_up_is_done() -> None:
    assert start_limit(64, 256) == 64
    assert start_limit(512, 256) == 256
    job, mine = a_job(), limits(warmup_steps=20)
    mine.joined(job)
    assert mine.of(job) == 64
    mine.stepped(job, 5)
    assert not mine.is_warm(job)
    mine.stepped(job, 20)
    assert mine.is_warm(job)
    assert mine.of(job) == 128


def test_resume_a_rejected_job_asks_for_half_but_not_for_less_than_its_own_batch() -> None:
    assert [after_rejection(r, 64) for r in (512, 129, 100, 64)] == [256, 64, 64, 64]


def test_scale_up_the_limit_doubles_with_every_epoch() -> None:
    job, mine = a_job(), limits()
    mine.joined(job)
    seen = []
    for _ in range(6):
        mine.finished_epoch(job, pressure=0.0, gpus=64, crowded=True)
        seen.append(mine.of(job))
    assert seen[:3] == [128, 256, 512]
    assert seen[-1] == cap(job, 64, OnesSettings()) == 1000  # ten steps to an epoch, at the least


def test_scale_down_a_job_that_runs_long_loses_batch_by_the_formula() -> None:
    """R' = ceil(2R / ceil(sigma T + 1)): 2 * 512 / 4 for sigma T = 2.5."""
    assert after_epoch(512, growth=2.0, pressure=2.5, rule="repaired", floor=1) == 256
    assert after_epoch(512, growth=2.0, pressure=6.2, rule="printed", floor=1) == 128
    assert after_epoch(100, growth=2.0, pressure=50.0, rule="repaired", floor=64) == 64


def test_the_printed_formula_never_lets_a_limit_grow() -> None:
    for pressure in (0.001, 0.5, 1.0, 3.0):
        assert after_epoch(512, growth=2.0, pressure=pressure, rule="printed", floor=1) <= 512
    assert after_epoch(512, growth=2.0, pressure=0.5, rule="repaired", floor=1) == 1024


def test_no_job_loses_batch_while_none_waits_unless_the_setting_says_so() -> None:
    job = a_job()
    for only_when_waiting, expected in ((True, 128), (False, 64)):
        mine = limits(ripening=0, shrink_only_when_waiting=only_when_waiting)
        mine.joined(job)
        mine.finished_epoch(job, pressure=9.0, gpus=64, crowded=False)
        assert mine.of(job) == expected


@given(
    st.integers(1, 1000), st.integers(1, 4000), st.integers(100, 100_000), st.lists(st.floats(0, 9))
)
def test_a_limit_keeps_within_memory_data_and_base_batch(
    base: int, local: int, size: int, pressures: list[float]
) -> None:
    job, mine = a_job(base=base, size=size, limit=local), limits()
    mine.joined(job)
    for pressure in pressures:
        mine.finished_epoch(job, pressure=pressure, gpus=8, crowded=True)
        assert 1 <= mine.of(job) <= max(min(base, local), min(8 * local, size // 10, 32 * base))


def test_growth_by_the_clock_waits_for_ten_seconds_and_twenty_steps() -> None:
    mine = limits(ripening=10.0, warmup_steps=20)
    job = told(a_job(), step_seconds=1.0)
    mine.joined(job)
    mine.ripen(job, 100.0, gpus=64)
    assert mine.of(job) == 64  # not warm: nothing has been measured
    mine.stepped(job, 20)
    assert mine.of(job) == 128
    mine.ripen(job, 100.0, gpus=64)  # the clock starts
    assert mine.of(job) == 128
    assert not mine.is_ripe(job.id, 105.0)
    assert mine.is_ripe(job.id, 110.0)
    mine.ripen(job, 119.0, gpus=64)
    assert mine.of(job) == 128  # only 19 steps of a second each
    mine.ripen(job, 120.0, gpus=64)
    assert mine.of(job) == 256
    quick = told(job, step_seconds=0.1)
    mine.ripen(quick, 129.0, gpus=64)
    assert mine.of(job) == 256  # 90 steps, but only 9 seconds
    mine.ripen(quick, 130.0, gpus=64)
    assert mine.of(job) == 512


def test_a_job_that_does_not_run_does_not_ripen() -> None:
    mine, job = limits(ripening=10.0), a_job()
    mine.joined(job)
    mine.stepped(job, 20)
    for now in (0.0, 10.0, 20.0):
        mine.ripen(replace(job, held=None), now, gpus=64)
    assert mine.of(job) == 128


def test_where_the_clock_lets_limits_grow_an_epoch_does_not() -> None:
    mine, job = limits(ripening=10.0), a_job()
    mine.joined(job)
    mine.finished_epoch(job, pressure=0.0, gpus=64, crowded=False)
    assert mine.of(job) == 64
    assert mine.is_warm(job)
    mine.finished_epoch(job, pressure=9.0, gpus=64, crowded=True)  # but it may lose by one
    assert mine.of(job) == 64


def test_the_clock_goes_on_in_a_loaded_copy() -> None:
    job = told(a_job(), step_seconds=0.1)
    mine, other = limits(ripening=10.0), limits(ripening=10.0)
    mine.joined(job)
    mine.stepped(job, 20)
    mine.ripen(job, 3.0, gpus=64)
    other.load(json.loads(json.dumps(mine.save())))
    for one in (mine, other):
        one.ripen(job, 12.9, gpus=64)
        assert one.of(job) == 128
        one.ripen(job, 13.0, gpus=64)
        assert one.of(job) == 256


def test_limits_are_saved_and_loaded() -> None:
    job, mine, other = a_job(), limits(), limits()
    mine.joined(job)
    mine.finished_epoch(job, pressure=0.0, gpus=64, crowded=True)
    other.load(mine.save())
    assert other.of(job) == mine.of(job)
    assert other.is_warm(job)


def test_the_arrival_rate_is_that_of_the_last_ten_minutes() -> None:
    rate = ArrivalRate()
    assert rate.at(0.0) == 0.0
    for i in range(100):
        rate.saw(10.0 * i)
    assert rate.at(990.0) == pytest.approx(0.1, rel=0.05)
