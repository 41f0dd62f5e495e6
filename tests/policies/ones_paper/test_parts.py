"""Interchangeable parts: throughput and placement."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from ones.core import Allocation, Cluster, Gpu, JobId, NodeId, Scheduler
from ones.core.job import Configuration, StepTime
from ones.core.view import JobView
from ones.policies import create
from ones.policies.ones_paper.placements import Candidate, least_moves, occurrence, stay
from ones.policies.ones_paper.throughputs import Fitted, Interpolated, PerGpu
from tests.policies.ones.jobs import a_job, told

SIZES = np.array([64, 128, 192, 256])
A, B, C = JobId("a"), JobId("b"), JobId("c")


def measured(job: JobView, *rows: tuple[int, int, float]) -> JobView:
    """(GPUs, batch, seconds of a step)"""
    return replace(job, profile={Configuration(n, 1, b): StepTime(s, 20) for n, b, s in rows})


def test_per_gpu_the_mean_rate_of_a_gpu_times_gpus() -> None:
    """64 / 0.5 s on one GPU, 128 / 2 / 1.0 s on each of two: 96 samples/s a GPU."""
    job = measured(a_job(), (1, 64, 0.5), (2, 128, 1.0))
    assert PerGpu().rates(job, SIZES, 4).tolist() == [96, 192, 288, 384]


def test_a_job_without_measurements_has_those_of_its_kind() -> None:
    for rule in (PerGpu(), Fitted()):
        job = measured(a_job(), (1, 64, 0.5))
        rule.measured(job)
        assert rule.rates(a_job(), SIZES, 4)[0] == pytest.approx(128)
        saved = type(rule)()
        saved.load(json.loads(json.dumps(rule.save())))
        assert saved.rates(a_job(), SIZES, 4)[0] == pytest.approx(128)


def test_jobs_without_a_kind_share_no_measurements() -> None:
    one = measured(a_job(), (1, 64, 0.5))
    one = replace(one, job=structs.replace(one.job, kind=""))
    other = replace(one, job=structs.replace(one.job, id=B), profile={})
    for rule in (PerGpu(), Fitted()):
        rule.measured(one)
        assert rule.rates(one, SIZES, 4)[0] == pytest.approx(128)
        assert rule.rates(other, SIZES, 4)[0] == pytest.approx(320), "not measured yet"
        rule.forget(one.id)
        assert rule.save() == {}


def test_fitted_knows_that_workers_wait_for_each_other() -> None:
    job = measured(a_job(), (1, 64, 0.5), (2, 128, 0.7))
    rates = Fitted().rates(job, SIZES, 4)
    assert rates[1] == pytest.approx(128 / 0.7, rel=0.05)
    assert rates[3] < 4 * rates[0]


def test_interpolated_goes_through_measured_sizes_and_on_by_the_last_slope() -> None:
    rule, job = Interpolated(), told(a_job(), step_seconds=0.5)
    assert rule.rates(job, SIZES, 4) == pytest.approx(320 * np.arange(1, 5)), "not measured yet"
    rule.finished_epoch(told(job, batch=64))  # 1 GPU: 128/s
    assert rule.rates(job, SIZES, 4).tolist() == [128, 256, 384, 512], "one size: proportional"
    held = Allocation.even([Gpu(NodeId("n0"), i) for i in range(3)], 160)
    rule.finished_epoch(replace(job, held=held))  # 3 GPUs: 320/s
    assert rule.rates(job, SIZES, 4).tolist() == [128, 224, 320, 416]
    again = Interpolated()
    again.load(json.loads(json.dumps(rule.save())))
    assert again.rates(job, SIZES, 4).tolist() == [128, 224, 320, 416]


def test_interpolated_takes_the_mean_of_the_last_five_epochs() -> None:
    rule, job = Interpolated(), a_job()
    for seconds in (9.0, 1.0, 1.0, 1.0, 1.0, 0.5):
        rule.finished_epoch(told(job, batch=64, step_seconds=seconds))
    assert rule.rates(job, SIZES, 4)[0] == pytest.approx((4 * 64 + 128) / 5)


GPUS = [Gpu(NodeId(f"n{i // 4}"), i % 4) for i in range(8)]


def numbers(places: dict[JobId, tuple[Gpu, ...]]) -> dict[str, list[int]]:
    return {job: [GPUS.index(gpu) for gpu in gpus] for job, gpus in places.items()}


def candidate(order: dict[JobId, int], **held: list[int]) -> Candidate:
    return Candidate(
        GPUS, order, {JobId(j): tuple(GPUS[i] for i in held.get(j, [])) for j in "abc"}
    )


def test_placement_by_occurrence_packs_from_the_first_gpu() -> None:
    view = Scheduler(Cluster.of(8), create("fifo")).state.view()
    found = occurrence(view, candidate({B: 2, A: 3}, a=[0, 1, 2], b=[5, 6]))
    assert numbers(found) == {"b": [0, 1], "a": [2, 3, 4]}


def test_placement_that_stays_moves_no_job_whose_size_does_not_change() -> None:
    view = Scheduler(Cluster.of(8), create("fifo")).state.view()
    found = stay(view, candidate({A: 1, B: 1}, a=[3]))
    assert numbers(found)["a"] == [3]


def test_least_moves_leaves_gaps_rather_than_take_gpus_of_others() -> None:
    view = Scheduler(Cluster.of(8), create("fifo")).state.view()
    order = {C: 2, A: 2, B: 2}
    held = {"a": [1, 2], "b": [6, 7]}
    found = numbers(least_moves(view, candidate(order, **held)))
    assert len({gpu for gpus in found.values() for gpu in gpus}) == 6
    taken = [g for job, gpus in found.items() for g in gpus
             if any(g in theirs for other, theirs in held.items() if other != job)]  # fmt: skip
    assert len(taken) <= 1, "packed in this order, C would take one GPU of A and A none of B"


def test_least_moves_falls_back_to_the_order_of_occurrence_without_gaps() -> None:
    view = Scheduler(Cluster.of(8), create("fifo")).state.view()
    found = least_moves(view, candidate({A: 5, B: 3}, a=[0, 1, 2, 3], b=[4, 5]))
    assert numbers(found) == {"a": [0, 1, 2, 3, 4], "b": [5, 6, 7]}
