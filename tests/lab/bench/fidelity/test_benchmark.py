"""`ones bench fidelity`: what is read from logs is what the simulator takes, and it runs live."""

from __future__ import annotations

import pytest

from ones.cli.client import Client
from ones.lab.bench.fidelity.benchmark import RUNS, bench_fidelity, order_row
from ones.lab.bench.fidelity.paced_jobs import measured_trace, submission


def test_the_trace_is_as_large_as_it_must_be() -> None:
    trace = measured_trace()
    assert len(trace.jobs) >= 12
    assert len(trace.kills) == 1
    assert {policy for policy, _ in RUNS} == {"ones", "tiresias", "optimus", "fifo"}
    for name, job in trace.named():
        body = submission(name, job, {}, "/")
        assert body["epochs"] == job.epochs
        assert str(job.kind.per_sample) in body["command"]


def test_the_order_is_compared_by_pairs() -> None:
    def row(policy: str, live: float, simulated: float) -> dict[str, object]:
        return {
            "policy": policy, "mean_jct_seconds": live, "simulated_mean_jct_seconds": simulated,
            "jobs": 1, "slots": 1, "mean_jct_error_percent": 0.0, "max_job_error_percent": 0.0,
        }  # fmt: skip

    told = order_row([row("a", 1.0, 1.1), row("b", 3.0, 2.0), row("c", 2.0, 2.1)])
    assert told["live_order"] == ["a", "c", "b"]
    assert told["simulated_order"] == ["a", "b", "c"]
    assert (told["pairs_in_order"], told["n"]) == (2, 3)


@pytest.mark.soak
def test_three_jobs_live_and_simulated() -> None:
    calibration, row = bench_fidelity(Client, quick=True)
    assert calibration["first_start_ms"] > 0
    assert calibration["clear_n"] >= 1
    assert (row["jobs"], row["n"], row["slots"]) == (3, 3, 3)
    assert row["mean_jct_seconds"] > 1
    assert set(row["job_error_percent"]) == {"p00", "p01", "p02"}


@pytest.mark.soak
def test_the_simulated_jobs_take_about_as_long_as_the_live_ones() -> None:
    _, row = bench_fidelity(Client, quick=True)
    assert row["mean_jct_error_percent"] < 100  # how true it is, the full one says
