"""Metrics: one definition of each number, whatever became of the jobs."""

from __future__ import annotations

from statistics import mean

import pytest

from ones.core.cluster import Cluster
from ones.core.events import CancelRequested, JobEnded, JobSubmitted
from ones.core.job import EndReason, Job, JobId
from ones.core.state import State
from ones.core.transitions import apply
from ones.policies import create
from ones.report import metrics_of
from ones.sim.run import Simulator
from ones.workload import Trace, generate


def _ended_after(*seconds: float) -> State:
    """Jobs submitted together at 10 s, each of which ends so long after."""
    state = State(Cluster.of(4))
    jobs = [Job(id=JobId(f"j{i}"), submitted_at=10.0) for i in range(len(seconds))]
    for job in jobs:
        apply(state, JobSubmitted(10.0, job))
    for job, length in zip(jobs, seconds, strict=True):
        apply(state, JobEnded(10.0 + length, job.id, EndReason.FINISHED))
    return state


def test_quantiles_lie_between_the_two_nearest_jobs() -> None:
    metrics = metrics_of(_ended_after(100.0, 200.0, 300.0, 400.0))
    assert metrics.mean_jct == 250.0
    assert metrics.median_jct == 250.0
    assert metrics.p95_jct == pytest.approx(385.0)
    assert metrics.p99_jct == pytest.approx(397.0)
    assert metrics.makespan == 400.0
    assert metrics.finished == 4


def test_without_a_completed_job_there_are_no_times() -> None:
    state = State(Cluster.of(4))
    empty = metrics_of(state)
    apply(state, JobSubmitted(1.0, Job(id=JobId("a"), submitted_at=1.0)))
    apply(state, JobSubmitted(1.0, Job(id=JobId("b"), submitted_at=1.0)))
    apply(state, JobSubmitted(1.0, Job(id=JobId("c"), submitted_at=1.0)))
    apply(state, JobEnded(2.0, JobId("a"), EndReason.FAILED))
    apply(state, JobEnded(3.0, JobId("b"), EndReason.CANCELLED))
    metrics = metrics_of(state)
    for none in (empty, metrics):
        times = (none.mean_jct, none.median_jct, none.p95_jct, none.p99_jct)
        assert (*times, none.mean_exec, none.mean_queue, none.makespan) == (None,) * 7
        assert none.utilization == 0.0
    assert metrics.rescale_rate is None  # no job ran
    assert (metrics.finished, metrics.failed, metrics.cancelled, metrics.unfinished) == (0, 1, 1, 1)


@pytest.mark.parametrize("policy", ["fifo", "equi"])
def test_queueing_and_execution_add_up_to_completion(policy: str) -> None:
    trace = generate(jobs=12, seed=1, gap=10)
    state = Simulator(trace, Cluster.of(8), create(policy), mechanism="elastic").run().state
    metrics = metrics_of(state)
    assert metrics.mean_jct is not None
    assert metrics.mean_exec is not None
    assert metrics.mean_queue is not None
    assert metrics.mean_exec + metrics.mean_queue == pytest.approx(metrics.mean_jct, abs=1e-6)
    assert metrics.finished == 12
    assert 0.0 < metrics.utilization <= 1.0
    assert metrics.rescales == sum(outcome.rescales for outcome in state.ended.values())
    assert (metrics.rescales > 0) == (policy == "equi")
    hours = sum(outcome.run_seconds for outcome in state.ended.values()) / 3600
    assert metrics.rescale_rate == pytest.approx(metrics.rescales / hours)


def test_a_cancelled_job_counts_in_no_mean_but_its_submission_begins_the_makespan() -> None:
    trace = generate(jobs=4, seed=2, gap=50)
    first = trace.jobs[0].job
    trace = Trace.of("cancelled", trace.jobs, [CancelRequested(first.submitted_at + 5, first.id)])
    state = Simulator(trace, Cluster.of(8), create("fifo")).run().state
    metrics = metrics_of(state)
    completed = [outcome for outcome in state.ended.values() if outcome.id != first.id]
    assert (metrics.finished, metrics.cancelled) == (3, 1)
    assert metrics.mean_jct == pytest.approx(mean(o.completion_seconds for o in completed))
    assert metrics.makespan == max(o.ended_at for o in completed) - first.submitted_at


def test_unfinished_jobs_count_with_what_they_have_been_through() -> None:
    simulator = Simulator(
        generate(jobs=8, seed=0, gap=5), Cluster.of(4), create("equi"), mechanism="elastic"
    )
    state = simulator.scheduler.state
    seen = 0

    class EnoughError(Exception):
        pass

    def until_five_rescales(entry: object) -> None:
        nonlocal seen
        seen = sum(record.rescales for record in state.records.values())
        if seen >= 5:
            raise EnoughError

    with pytest.raises(EnoughError):
        simulator.run(until_five_rescales)
    metrics = metrics_of(state)
    assert metrics.unfinished == len(state.records) > 0
    assert metrics.rescales >= seen
