"""`ones bench fidelity`: what is read from logs is what the simulator takes, and it runs live."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from ones.cli.client import Client
from ones.core.state import State
from ones.errors import UnknownNameError
from ones.lab.bench.fidelity.benchmark import (
    RUNS,
    Outcome,
    bench_fidelity,
    order_row,
    policy_row,
)
from ones.lab.bench.fidelity.calibration import MeasuredTimes
from ones.lab.bench.fidelity.paced_jobs import (
    TRACES,
    PacedTrace,
    calibration_trace,
    mixed_trace,
    submission,
)
from ones.lab.bench.fidelity.simulated_run import simulate
from ones.sim.physics import SwitchTimes

SWITCH = SwitchTimes(first_start=3.0, join=1.0, regroup=0.05, rescale=0.1, restart=2.0, clear=0.2)
TIMES = MeasuredTimes(SWITCH, ((1, 0.004),), {})


def test_the_default_trace_is_as_large_as_it_must_be() -> None:
    trace = mixed_trace()
    assert next(iter(TRACES)) == trace.name
    assert len(trace.jobs) >= 12
    assert len(trace.kills) == 1
    assert {policy for policy, _ in RUNS} == {"ones", "tiresias", "optimus", "fifo"}
    for name, job in trace.named():
        body = submission(name, job, {}, "/")
        assert body["epochs"] == job.epochs
        assert str(job.kind.per_sample) in body["command"]


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_valid_and_always_the_same(name: str) -> None:
    trace = TRACES[name]()
    assert trace.name == name
    assert trace == TRACES[name]()
    assert trace.simulated() == TRACES[name]().simulated()
    times = [job.at for job in trace.jobs]
    assert times == sorted(times)
    assert all(1 <= job.gpus <= trace.slots and job.epochs >= 1 for job in trace.jobs)
    assert {kill.job for kill in trace.kills} <= {job for job, _ in trace.named()}


@pytest.mark.parametrize("name", ["bursts", "long"])
def test_the_short_traces_fit_four_slots_and_want_more(name: str) -> None:
    trace = TRACES[name]()
    assert trace.slots == 4
    assert len(trace.jobs) >= 12
    work = sum(_seconds_on_one_slot(trace).values())
    assert 0.4 < work / (trace.slots * (trace.jobs[-1].at + 20)) < 1.5


def test_bursts_have_gaps_and_long_has_one_long_job() -> None:
    arrivals = [job.at for job in TRACES["bursts"]().jobs]
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert sorted(gap > 20 for gap in gaps) == [False] * 12 + [True] * 2
    assert max(_seconds_on_one_slot(TRACES["bursts"]()).values()) < 25
    lengths = sorted(_seconds_on_one_slot(TRACES["long"]()).values())
    assert lengths[-1] > 200
    assert lengths[-2] < 25


def _seconds_on_one_slot(trace: PacedTrace) -> dict[str, float]:
    lengths = {}
    for name, job in trace.named():
        kind = job.kind
        step = kind.fixed + kind.batch * kind.per_sample
        lengths[name] = job.epochs * kind.samples / kind.batch * step
    return lengths


@pytest.mark.parametrize("name", ["bursts", "long"])
@pytest.mark.parametrize(("policy", "mechanism"), RUNS)
def test_the_short_traces_end_in_the_simulator(name: str, policy: str, mechanism: str) -> None:
    trace = TRACES[name]()
    state = simulate(trace, policy, mechanism, TIMES)
    assert len(state.ended) == len(trace.jobs)
    assert all(outcome.reason.completed for outcome in state.ended.values())


def test_the_calibration_runs_on_as_many_slots_as_the_trace() -> None:
    assert calibration_trace(4).slots == 4
    assert max(job.gpus for job in calibration_trace(4).jobs) <= 4


def test_a_row_has_the_mean_and_the_spread_of_its_runs() -> None:
    trace = TRACES["bursts"]()
    simulated = simulate(trace, "fifo", "restart", TIMES)
    once = _outcome(simulated, 1.0)
    row = policy_row(trace, "fifo", "restart", [once], simulated)
    assert (row["trace"], row["runs"], row["n"]) == ("bursts", 1, 15)
    assert row["mean_jct_error_percent"] == 0.0
    assert row["mean_jct_seconds_sd"] is None
    row = policy_row(trace, "fifo", "restart", [once, _outcome(simulated, 1.5)], simulated)
    mean = fmean(once.jct_seconds.values())
    assert row["runs"] == 2
    assert row["mean_jct_seconds_each"] == [round(mean, 2), round(1.5 * mean, 2)]
    assert row["mean_jct_seconds"] == pytest.approx(1.25 * mean, abs=0.01)
    assert row["mean_jct_seconds_sd"] == pytest.approx(0.5 * mean / 2**0.5, abs=0.01)
    assert row["simulated_mean_jct_seconds"] == pytest.approx(mean, abs=0.01)
    assert row["mean_jct_error_percent"] == pytest.approx(20.0)
    assert set(row["job_error_percent"].values()) == {-20.0}


def test_a_job_that_failed_in_one_run_is_not_compared() -> None:
    trace = TRACES["bursts"]()
    simulated = simulate(trace, "fifo", "restart", TIMES)
    once = _outcome(simulated, 1.0)
    rest = {name: seconds for name, seconds in once.jct_seconds.items() if name != "p03"}
    row = policy_row(trace, "fifo", "restart", [once, replace(once, jct_seconds=rest)], simulated)
    assert (row["n"], "p03" in row["job_error_percent"]) == (14, False)


def _outcome(simulated: State, factor: float) -> Outcome:
    seconds = {str(job): factor * o.completion_seconds for job, o in simulated.ended.items()}
    return Outcome(simulated, len(seconds), seconds)


def test_the_order_is_compared_by_pairs() -> None:
    def row(policy: str, live: float, simulated: float) -> dict[str, object]:
        return {
            "policy": policy, "mean_jct_seconds": live, "simulated_mean_jct_seconds": simulated,
            "trace": "mixed", "runs": 1,
            "jobs": 1, "slots": 1, "mean_jct_error_percent": 0.0, "max_job_error_percent": 0.0,
        }  # fmt: skip

    told = order_row([row("a", 1.0, 1.1), row("b", 3.0, 2.0), row("c", 2.0, 2.1)])
    assert told["live_order"] == ["a", "c", "b"]
    assert told["simulated_order"] == ["a", "b", "c"]
    assert (told["pairs_in_order"], told["n"]) == (2, 3)


def test_an_unknown_trace_is_refused_with_the_known_ones() -> None:
    from ones.cli.bench.service import fidelity

    with pytest.raises(UnknownNameError, match="did you mean 'bursts'"):
        fidelity(trace="burst")


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
