"""Finish-time fairness: the time alone on a share, and ρ of runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from ones.lab.runs import Run, RunSpec, trace_of
from ones.sim.fair_share import seconds_alone
from ones.sim.lengths import expected_seconds, physics_of

SPEC = RunSpec(policy="fifo", jobs=8, gpus=16, seed=3, mechanism="elastic")
ENTRY = trace_of(SPEC).jobs[0]
PHYSICS = physics_of(ENTRY.training)


def alone(share: float, **changes: object) -> float:
    job = structs.replace(ENTRY.job, **changes)
    return seconds_alone(job, ENTRY.training, PHYSICS, share)


def test_a_larger_share_is_never_slower() -> None:
    times = [alone(share) for share in (0.5, 1.0, 2.0, 4.0, 16.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[1] > times[3]
    start = PHYSICS.switch.first_start
    assert times[0] - start == pytest.approx(2 * (times[1] - start))  # half of the time on one GPU


def test_a_rigid_job_takes_turns_on_its_size() -> None:
    rigid = {"min_gpus": 4, "max_gpus": 4, "elastic": False}
    start = PHYSICS.switch.first_start
    assert alone(2.0, **rigid) - start == pytest.approx(2 * (alone(4.0, **rigid) - start))
    assert alone(16.0, **rigid) == alone(4.0, **rigid) > alone(4.0)


def test_a_job_with_more_gpus_than_samples_in_its_batch_has_a_sample_on_each() -> None:
    """Such a trace is valid: a plan gives every worker at least one sample."""
    tiny = replace(ENTRY.training, base_batch=1)
    for elastic in (True, False):
        job = structs.replace(ENTRY.job, min_gpus=40, elastic=elastic)
        assert seconds_alone(job, tiny, physics_of(tiny), 64.0) > 0


def test_the_time_alone_contains_the_input_pipeline() -> None:
    entry = trace_of(RunSpec(policy="", workload="paper-artifact", jobs=8, seed=3)).jobs[0]
    job = structs.replace(
        entry.job, elastic=False, min_gpus=1, max_gpus=1, requested_gpus=1, requested_batch=None
    )
    physics = physics_of(entry.training)
    expected = expected_seconds(entry.training, 1, entry.training.base_batch)
    found = seconds_alone(job, entry.training, physics, 1.0) - physics.switch.first_start
    assert physics.epoch_rules.load > 0
    assert found == pytest.approx(expected)


def test_a_job_alone_is_compared_with_the_whole_cluster() -> None:
    run = Run(replace(SPEC, jobs=1))
    result = run.simulate()
    (rho,) = run.fairness(result).values()
    entry = run.trace.jobs[0]
    whole = seconds_alone(entry.job, entry.training, physics_of(entry.training), 16.0)
    (outcome,) = result.state.ended.values()
    assert rho == pytest.approx(outcome.completion_seconds / whole)
    assert rho > 1.0  # `fifo` gives it the requested GPUs only


def test_figures_of_a_run_follow_from_its_jobs() -> None:
    run = Run(SPEC)
    result = run.simulate()
    ratios = list(run.fairness(result).values())
    row = run.row(result)
    assert len(ratios) == row["finished"] == 8
    assert row["worst_rho"] == max(ratios)
    assert row["mean_rho"] == pytest.approx(sum(ratios) / 8)
    assert row["unfair_share"] == sum(ratio > 1 for ratio in ratios) / 8
    held = sum(outcome.gpu_seconds for outcome in result.state.ended.values())
    assert row["gpu_hours"] == pytest.approx(held / 3600)
    assert row["gpu_hours"] * 3600 <= 16 * max(o.ended_at for o in result.state.ended.values())


def test_with_more_contention_the_same_wait_is_fairer() -> None:
    """N counts the jobs in the system: all jobs at once have the smallest shares."""
    spread = Run(replace(SPEC, gap=10_000.0))
    crowded = Run(replace(SPEC, gap=0.0))
    apart = spread.fairness(spread.simulate())
    together = crowded.fairness(crowded.simulate())
    assert min(apart.values()) > min(together.values())
