"""R_j as the paper words it: Start, Resume, Scale-up, Scale-down; and the arrival rate behind σ."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core import Allocation, Gpu, JobView, NodeId
from ones.policies.ones_paper.arrivals import ArrivalRate
from ones.policies.ones_paper.limits import BatchLimits
from ones.policies.ones_paper.scale_downs import SCALE_DOWNS, SIGMAS, largest, printed, repaired
from tests.policies.ones.jobs import a_job


def limits(**chosen: Any) -> BatchLimits:
    usual = {"growth": "epoch", "batch": "constant", "scale_down": "repaired"}
    return BatchLimits(**{**usual, "warmup_steps": 20, "most_base_batches": 32, **chosen})


def on(job: JobView, gpus: int, batch: int) -> JobView:
    held = Allocation.even([Gpu(NodeId("n0"), i) for i in range(gpus)], batch)
    return replace(job, held=held, wanted=held)


def test_start_a_job_is_on_one_gpu_until_its_warm_up_steps_are_done() -> None:
    mine, job = limits(warmup_steps=20), a_job(base=64)
    mine.joined(job)
    mine.ordered(job.id, 64)
    assert (mine.of(job), mine.most_gpus(job)) == (64, 1)
    mine.finished_epoch(on(job, 1, 64), pressure=0.0, gpus=8)
    assert (mine.of(job), mine.most_gpus(job)) == (128, 2)
    young = limits(warmup_steps=20)
    young.joined(job)
    young.stepped(job, 19)
    assert young.most_gpus(job) == 1
    young.stepped(job, 20)
    assert young.most_gpus(job) == 1, "the limit itself only grows after an epoch"


def test_start_the_batch_is_what_memory_accommodates() -> None:
    mine, job = limits(), a_job(base=512, limit=256)
    mine.joined(job)
    assert mine.of(job) == 256


def test_scale_up_the_limit_doubles_after_each_epoch() -> None:
    mine, job = limits(), a_job(base=64, size=1_000_000)
    mine.joined(job)
    found = []
    for _ in range(4):
        mine.finished_epoch(on(job, 1, 64), pressure=0.0, gpus=64)
        found.append(mine.of(job))
    assert found == [128, 256, 512, 1024]
    assert mine.most_gpus(job) == 2, "but the batch itself at most doubles at a time"


def test_scale_up_when_held_waits_until_the_job_has_reached_its_limit() -> None:
    mine, job = limits(growth="held"), a_job(base=64, size=1_000_000)
    mine.joined(job)
    for batch, limit in ((64, 128), (64, 128), (128, 256)):
        mine.finished_epoch(on(job, batch // 64, batch), pressure=0.0, gpus=64)
        assert mine.of(job) == limit


def test_resume_a_rejected_job_asks_for_half_but_not_below_one_gpu() -> None:
    mine, job = limits(), a_job(base=64, size=1_000_000)
    mine.joined(job)
    for _ in range(3):
        mine.finished_epoch(on(job, 4, 256), pressure=0.0, gpus=64)
    assert mine.of(job) == 512
    found = []
    for _ in range(4):
        mine.rejected(job)
        found.append(mine.of(job))
    assert found == [256, 128, 64, 64]


def test_scale_down_by_the_formula() -> None:
    """R' = ceil(2R / ceil(σT + 1)): 2 x 512 / 4 for σT = 2.5."""
    assert repaired(512, 2.5, 0.1) == printed(512, 2.5, 0.1) == 256
    assert printed(100, 6.2, 0.1) == 25
    mine, job = limits(scale_down="repaired"), a_job(base=64, size=1_000_000)
    mine.joined(job)
    for pressure, limit in ((0.0, 128), (1.0, 256), (1.1, 171), (50.0, 64)):
        mine.finished_epoch(on(job, 1, 64), pressure=pressure, gpus=64)
        assert mine.of(job) == limit


@given(st.integers(1, 10_000), st.floats(1e-6, 100))
def test_the_printed_formula_never_lets_a_limit_grow(limit: int, pressure: float) -> None:
    assert printed(limit, pressure, 0.5) <= limit


def test_other_rules_for_long_jobs() -> None:
    assert SCALE_DOWNS["never"](64, 99.0, 1.0) == 128
    assert (largest(64, 9.0, 0.4), largest(64, 9.0, 0.5)) == (128, printed(64, 9.0, 0.5))


def test_sigma() -> None:
    assert SIGMAS["arrivals"](0.1, 64, 50.0) == 0.1
    assert SIGMAS["per-gpu"](0.64, 64, 50.0) == pytest.approx(0.01)
    assert (SIGMAS["median"](0.1, 64, 50.0), SIGMAS["median"](0.1, 64, 0.0)) == (0.02, 0.0)


@given(st.integers(1, 1000), st.integers(1, 4000), st.integers(100, 100_000), st.integers(0, 12))
def test_a_limit_has_an_upper_bound(base: int, local: int, size: int, epochs: int) -> None:
    mine, job = limits(), a_job(base=base, size=size, limit=local)
    mine.joined(job)
    for _ in range(epochs):
        mine.finished_epoch(on(job, 1, max(1, base)), pressure=0.0, gpus=8)
        assert 1 <= mine.of(job) <= max(min(base, local), min(8 * local, size // 10, 32 * base))


def test_eq_2_the_batch_is_the_local_batch_on_each_gpu_or_the_largest_that_fits() -> None:
    job = a_job(base=64, size=1_000_000, limit=256)
    for batch, expected in (("constant", [64, 128, 192]), ("largest", [256, 256, 256])):
        mine = limits(batch=batch)
        mine.joined(job)
        for _ in range(2):
            mine.finished_epoch(on(job, 2, 128), pressure=0.0, gpus=64)
        assert mine.batches(job, 3).tolist() == expected


def test_limits_go_on_after_save_and_load() -> None:
    one, other, job = limits(), limits(), a_job(base=64, size=1_000_000)
    one.joined(job)
    one.finished_epoch(on(job, 1, 64), pressure=0.0, gpus=8)
    other.load(json.loads(json.dumps(one.save())))
    assert (other.of(job), other.most_gpus(job)) == (128, 2)


def test_the_arrival_rate_is_one_over_the_mean_gap_while_jobs_arrive() -> None:
    rate = ArrivalRate()
    for i in range(40):
        rate.add(12.0 * i)
        if i >= 5:
            assert rate.at(12.0 * i) == pytest.approx(1 / 12)


def test_the_arrival_rate_falls_to_0_after_arrivals_have_stopped() -> None:
    rate = ArrivalRate()
    for i in range(50):
        rate.add(12.0 * i)
    last = 12.0 * 49
    found = [rate.at(last + wait) for wait in (0.0, 60.0, 120.0, 240.0, 5000.0)]
    assert found == sorted(found, reverse=True)
    assert found[2] == pytest.approx(1 / 24, rel=0.1)
    assert found[3:] == [0.0, 0.0]


def test_the_arrival_rate_is_0_before_five_jobs_and_finite_for_jobs_at_one_time() -> None:
    rate = ArrivalRate()
    for _ in range(4):
        rate.add(5.0)
        assert rate.at(5.0) == 0.0
    rate.add(5.0)
    assert rate.at(5.0) == 5.0
    other = ArrivalRate()
    other.load(json.loads(json.dumps(rate.save())))
    assert other.at(5.0) == 5.0
