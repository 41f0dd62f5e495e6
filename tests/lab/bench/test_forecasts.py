"""`ones bench forecasts`: which forecasts are taken, and what counts as covered."""

from __future__ import annotations

import pytest

from docs.reference.results import FORECAST_ROW_KEYS
from ones.cli.client import Client
from ones.core import Generation, Gpu, JobId, NodeId, Plan
from ones.core import events as ev
from ones.core.job import EndReason, Forecast
from ones.core.plan import Stop
from ones.lab.bench.forecasts import bench_forecasts, forecasts_of, row_of, simulated_row

A, B = JobId("a"), JobId("b")
GPU = Gpu(NodeId("n0"), 0)


def test_the_forecast_in_effect_at_each_share_of_a_life_is_taken() -> None:
    wrong, right = Forecast(60.0, 50.0, 70.0), Forecast(115.0, 90.0, 130.0)
    entries = [
        ev.WorkerReady(10.0, A, Generation(1), GPU),
        ev.WorkerReady(10.0, B, Generation(1), GPU),
        Plan(number=2, at=20.0, forecasts={A: wrong}),
        Plan(number=3, at=40.0, forecasts={A: right}),
        Plan(number=4, at=70.0, actions=(Stop(A),)),
        ev.WorkerReady(75.0, A, Generation(2), GPU),
        ev.JobEnded(80.0, B, EndReason.CANCELLED),
        Plan(number=6, at=100.0, forecasts={A: wrong}),
        ev.JobEnded(110.0, A, EndReason.FINISHED),
    ]
    taken = forecasts_of(entries)
    assert [(t.share, t.at, t.forecast) for t in taken] == [
        (20, 30.0, wrong), (50, 60.0, right), (80, 90.0, None),
    ]  # fmt: skip
    row = row_of("live", 2, taken)
    assert (row["completed"], row["n"], row["missing"]) == (1, 2, 1)
    assert (row["covered_percent"], row["late_percent"], row["early_percent"]) == (50.0, 50.0, 0.0)
    assert [row[f"covered_percent_at_{share}"] for share in (20, 50, 80)] == [0.0, 100.0, None]


def test_a_start_from_zero_ends_the_forecast() -> None:
    entries = [
        ev.WorkerReady(0.0, A, Generation(1), GPU),
        Plan(number=2, at=10.0, forecasts={A: Forecast(100.0, 90.0, 110.0)}),
        ev.TrainingRestarted(40.0, A, Generation(1), 3),
        ev.JobEnded(100.0, A, EndReason.FINISHED),
    ]
    assert [t.forecast is None for t in forecasts_of(entries)] == [False, True, True]


@pytest.mark.slow
def test_a_simulated_run_gives_a_row_with_the_documented_keys() -> None:
    row = simulated_row(6, 0)
    assert set(row) == set(FORECAST_ROW_KEYS)
    assert row["n"] + row["missing"] == 3 * row["completed"] == 18


@pytest.mark.soak
def test_two_live_jobs_give_a_row() -> None:
    live, _ = bench_forecasts(Client, quick=True, jobs=2)
    assert live["completed"] == 2
    assert set(live) == set(FORECAST_ROW_KEYS)
