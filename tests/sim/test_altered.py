"""Other worlds: what is multiplied, what is not, and that no policy is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ones.core import Cluster
from ones.core.schedule import Allocation
from ones.errors import UserError
from ones.lab.runs import Run, RunSpec, trace_of
from ones.sim.lengths import physics_of
from ones.sim.oracle import oracle_of
from ones.sim.perturbed import altered_physics, factors_of
from ones.workload import TraceJob

SPEC = RunSpec(policy="equi", jobs=6, gpus=16, seed=3, mechanism="elastic")
TRACE = trace_of(SPEC)


def wide(gpus: int) -> Allocation:
    return Allocation.even(list(Cluster.of(16).gpus())[:gpus], 64 * gpus)


@pytest.mark.parametrize("entry", TRACE.jobs, ids=lambda entry: entry.job.kind)
def test_each_factor_multiplies_its_own_and_nothing_else(entry: TraceJob) -> None:
    usual = physics_of(entry.training)
    noisy = altered_physics({"noise": 3.0}, TRACE)(entry.training)
    for progress in (0.0, 5.0, 1e6):
        assert noisy.noise_scale(progress) == pytest.approx(3 * usual.noise_scale(progress))  # type: ignore[operator]
    assert noisy.efficiency(4096, 1.0) > usual.efficiency(4096, 1.0)
    assert noisy.step_seconds(wide(8)) == usual.step_seconds(wide(8))
    assert noisy.switch == usual.switch
    slow = altered_physics({"network": 0.3}, TRACE)(entry.training)
    assert slow.step_seconds(wide(8)) > usual.step_seconds(wide(8))
    assert slow.step_seconds(wide(4)) == usual.step_seconds(wide(4))  # inside a node
    assert slow.noise_scale(3.0) == usual.noise_scale(3.0)
    dear = altered_physics({"rescale": 10.0}, TRACE)(entry.training).switch
    assert (dear.rescale, dear.restart, dear.regroup) == pytest.approx(
        (10 * usual.switch.rescale, 10 * usual.switch.restart, 10 * usual.switch.regroup)
    )
    assert dear.first_start == usual.switch.first_start


def test_a_run_meets_the_other_world_with_the_same_jobs_and_priors() -> None:
    usual, dear = Run(SPEC), Run(replace(SPEC, physics={"rescale": 10.0}))
    assert [e.job for e in usual.trace.jobs] == [e.job for e in dear.trace.jobs]
    assert usual.header().switch_cost == dear.header().switch_cost
    assert dear.carry_out()["mean_jct"] > usual.carry_out()["mean_jct"] + 5.0


def test_oracles_are_told_the_truth_of_the_other_world() -> None:
    job: Any = SimpleNamespace(id=TRACE.jobs[0].job.id, epochs=0.0)
    usual = oracle_of(TRACE, seed=3)(job, 8, 512)
    slow = oracle_of(TRACE, seed=3, physics=altered_physics({"network": 0.1}, TRACE))(job, 8, 512)
    noisy = oracle_of(TRACE, seed=3, physics=altered_physics({"noise": 0.1}, TRACE))(job, 8, 4096)
    assert slow.epoch_seconds > usual.epoch_seconds
    assert slow.epochs == usual.epochs
    assert noisy.epochs > oracle_of(TRACE, seed=3)(job, 8, 4096).epochs


def test_recorded_jobs_have_laws_of_their_own(tmp_path: Path) -> None:
    Run(replace(SPEC, jobs=2)).carry_out_into(tmp_path)
    spec = replace(SPEC, workload=str(tmp_path / "run.jsonl"), jobs=None)
    Run(spec)
    with pytest.raises(UserError, match="holds recorded jobs: their physics cannot be multiplied"):
        Run(replace(spec, physics={"noise": 3.0}))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nose=2"], "unknown part of the physics 'nose'; did you mean 'noise'"),
        (["noise"], "--physics: 'noise' is not KEY=FACTOR"),
        (["noise=much"], "--physics: noise: 'much' is not a number"),
        (["network=0"], "--physics: network: 0 is not a number above 0"),
        (["network=nan"], "--physics: network: nan is not a number above 0"),
        (["noise=2", "noise=3"], "--physics: noise is there twice"),
    ],
)
def test_what_cannot_be_multiplied_is_named(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        factors_of(texts)
