"""Forecasts of fixed-size jobs that report their progress."""

from __future__ import annotations

import json

from ones.core import Cluster, Generation, Gpu, Job, JobId, NodeId, Scheduler
from ones.core import events as ev
from ones.policies import create
from ones.policies.ones.predict.forecast_errors import UNKNOWN

A = JobId("a")
FIRST = Generation(1)


def started() -> Scheduler:
    scheduler = Scheduler(Cluster.of(2), create("ones"))
    job = Job(id=A, submitted_at=0.0, min_gpus=2, max_gpus=2, elastic=False)
    scheduler.handle(ev.JobSubmitted(0.0, job))
    for index in range(2):
        scheduler.handle(ev.WorkerReady(1.0, A, FIRST, Gpu(NodeId("n0"), index)))
    return scheduler


def steps(scheduler: Scheduler, at: float, epoch: int) -> None:
    scheduler.handle(
        ev.StepsDone(
            at=at, job=A, generation=FIRST, epoch=epoch, steps=0, samples=0, planned_epochs=20
        )
    )


def ends(scheduler: Scheduler, at: float, epoch: int) -> None:
    scheduler.handle(
        ev.EpochFinished(
            at=at, job=A, generation=FIRST, epoch=epoch, steps=5, samples=0, step_seconds=2.0,
            planned_epochs=20,
        )
    )  # fmt: skip


def test_the_rest_takes_as_long_for_each_part_as_the_parts_before() -> None:
    scheduler = started()
    steps(scheduler, 100.0, 1)
    ends(scheduler, 110.0, 1)
    ends(scheduler, 120.0, 2)
    forecast = scheduler.state.records[A].forecast
    assert forecast is not None
    assert forecast.eta == 120.0 + 18 * 10.0
    assert (forecast.low, forecast.high) == tuple(120.0 + 180.0 * part for part in UNKNOWN)


def test_a_job_that_resumed_is_measured_from_there() -> None:
    scheduler = started()
    steps(scheduler, 100.0, 11)  # ten parts were done before
    ends(scheduler, 110.0, 11)
    forecast = scheduler.state.records[A].forecast
    assert forecast is not None
    assert forecast.eta == 110.0 + 9 * 10.0


def test_nothing_is_forecast_from_one_report_and_all_is_saved() -> None:
    scheduler = started()
    ends(scheduler, 110.0, 5)
    assert scheduler.state.records[A].forecast is None
    saved = json.loads(json.dumps(scheduler.policy.save()))
    other = create("ones")
    other.load(saved)
    assert json.loads(json.dumps(other.save())) == saved
