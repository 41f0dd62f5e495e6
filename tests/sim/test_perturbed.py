"""Perturbed physics: what a factor multiplies, what it does not, and what policies see."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ones.core import Cluster
from ones.core.events import EpochFinished
from ones.core.schedule import Allocation
from ones.errors import UserError
from ones.lab.runs import Run, RunSpec, trace_of
from ones.runlog import Entry
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


def test_a_run_with_other_physics_has_the_same_jobs_and_priors() -> None:
    usual, dear = Run(SPEC), Run(replace(SPEC, physics={"rescale": 10.0}))
    assert [e.job for e in usual.trace.jobs] == [e.job for e in dear.trace.jobs]
    assert usual.header().switch_cost == dear.header().switch_cost
    assert dear.carry_out()["mean_jct"] > usual.carry_out()["mean_jct"] + 5.0


def epochs(**physics: float) -> dict[str, list[EpochFinished]]:
    """Reports of each job in a run with these changes."""
    found: dict[str, list[EpochFinished]] = {}

    def record(entry: Entry) -> None:
        if isinstance(entry, EpochFinished):
            found.setdefault(entry.job, []).append(entry)

    factors = {name.replace("_", "-"): value for name, value in physics.items()}
    Run(replace(SPEC, policy="fifo", physics=factors)).simulate(record)
    return found


def rises(losses: list[float | None]) -> int:
    known = [loss for loss in losses if loss is not None]
    return sum(after > before for before, after in pairwise(known))


def test_losses_can_be_noisy_or_rise_and_fall_while_training_is_the_same() -> None:
    usual, noisy, waving = epochs(), epochs(loss_noise=0.3), epochs(loss_waves=0.3)
    for job, before in usual.items():
        assert rises([e.loss for e in before]) == 0
        for other in (noisy[job], waving[job]):
            assert [(e.at, e.accuracy, e.samples) for e in other] == [
                (e.at, e.accuracy, e.samples) for e in before
            ]
        assert rises([e.loss for e in noisy[job]]) > len(before) / 4
    some = usual[TRACE.jobs[0].job.id]
    ratios = [a.loss / b.loss for a, b in zip(waving[some[0].job], some, strict=True)]  # type: ignore[operator]
    assert all(0.7 <= ratio <= 1.3 for ratio in ratios)
    assert max(ratios) - min(ratios) > 0.4  # a whole wave
    assert max(abs(b - a) for a, b in pairwise(ratios)) < 0.2  # and a slow one


def test_a_bias_of_the_reported_noise_scale_is_not_in_the_training() -> None:
    usual, biased = epochs(), epochs(reported_noise=10.0)
    for job, before in usual.items():
        for a, b in zip(before, biased[job], strict=True):
            assert b.gradient_noise == pytest.approx(10 * (a.gradient_noise or 0.0))
            assert (b.at, b.loss) == (a.at, a.loss)


def test_start_up_times_can_be_longer() -> None:
    usual = physics_of(TRACE.jobs[0].training).switch
    late = altered_physics({"startup": 5.0}, TRACE)(TRACE.jobs[0].training).switch
    assert (late.first_start, late.join) == pytest.approx((5 * usual.first_start, 5 * usual.join))
    assert (late.rescale, late.restart) == (usual.rescale, usual.restart)


def test_usual_values_give_the_same_run_byte_for_byte(tmp_path: Path) -> None:
    logs = []
    for name, physics in {
        "default": {},
        "usual": {"startup": 1.0, "stragglers": 1.0, "loss-noise": 0.0, "reported-noise": 1.0},
    }.items():
        Run(replace(SPEC, physics=physics)).carry_out_into(_directory(tmp_path / name))
        logs.append((tmp_path / name / "run.jsonl").read_bytes())
    assert logs[0] == logs[1]


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_oracles_know_the_perturbed_physics() -> None:
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
    with pytest.raises(
        UserError, match="contains recorded jobs; --physics needs a trace without them"
    ):
        Run(replace(spec, physics={"noise": 3.0}))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nose=2"], "unknown part of the physics 'nose'; did you mean 'noise'"),
        (["noise"], "--physics: 'noise' is not KEY=VALUE"),
        (["noise=much"], "--physics: noise: 'much' is not a number"),
        (["network=0"], "--physics: network: 0 is not a number above 0"),
        (["loss-noise=-1"], "--physics: loss-noise: -1 is not a number of at least 0"),
        (["network=nan"], "--physics: network: nan is not a number above 0"),
        (["noise=2", "noise=3"], "--physics: noise is given twice"),
    ],
)
def test_what_cannot_be_multiplied_is_named(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        factors_of(texts)
