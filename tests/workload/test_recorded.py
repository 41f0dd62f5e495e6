"""Last week's jobs under another policy: from a log's own measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ones.core import Cluster
from ones.errors import UserError
from ones.lab.runs import Run, RunSpec
from ones.policies import create
from ones.report import metrics_of
from ones.runlog import RunLog
from ones.sim import Simulator
from ones.sim.recorded import RecordedPhysics
from ones.workload import paper_numbers
from ones.workload.recorded import read_recording
from ones.workload.trace import RecordedTraining


def record(directory: Path, policy: str = "fifo", jobs: int = 25, **more: object) -> Path:
    spec = RunSpec(policy=policy, gpus=32, jobs=jobs, seed=3, **more)  # type: ignore[arg-type]
    Run(spec).carry_out_into(directory)
    return directory / "run.jsonl"


def test_the_same_policy_on_recorded_jobs_gives_nearly_the_recorded_times(tmp_path: Path) -> None:
    log = record(tmp_path)
    trace, left_out = read_recording(RunLog(log))
    assert (len(trace.jobs), left_out) == (25, 0)
    again = Simulator(trace, Cluster.of(32), create("fifo"), seed=99).run()
    before = Simulator(Run(RunSpec(policy="fifo", gpus=32, jobs=25, seed=3)).trace,
                       Cluster.of(32), create("fifo"), seed=3).run()  # fmt: skip
    assert len(again.state.ended) == 25
    for job, outcome in before.state.ended.items():
        assert again.state.ended[job].run_seconds == pytest.approx(outcome.run_seconds, rel=0.08)
        assert again.state.ended[job].reason is outcome.reason


def test_another_policy_can_be_asked(tmp_path: Path) -> None:
    log = record(tmp_path, policy="equi", mechanism="elastic")
    row = Run(RunSpec(policy="fifo", workload=str(log), gpus=32, jobs=None)).carry_out()
    assert row["finished"] == 25
    assert row["workload"] == str(log)


def test_jobs_that_came_together_are_not_sorted_by_their_end(tmp_path: Path) -> None:
    log = record(tmp_path, policy="equi", gap=0.0, mechanism="elastic")
    trace, _ = read_recording(RunLog(log))
    names = [entry.job.id for entry in trace.jobs]
    assert names == sorted(names)  # as they were generated and submitted


def test_a_recorded_job_runs_as_fast_as_it_was_measured(tmp_path: Path) -> None:
    trace, _ = read_recording(RunLog(record(tmp_path, jobs=10)))
    for entry in trace.jobs:
        assert isinstance(entry.training, RecordedTraining)
        assert entry.training.step_seconds
        assert entry.training.total > 5


def test_unfinished_jobs_have_no_known_length_and_are_left_out(tmp_path: Path) -> None:
    log = record(tmp_path, jobs=25)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) // 2]))
    trace, left_out = read_recording(RunLog(log))
    assert left_out > 0
    assert trace.jobs
    state = Simulator(trace, Cluster.of(32), create("fifo")).run().state
    assert metrics_of(state).finished == len(trace.jobs)


def test_a_log_in_which_nothing_ended_is_refused(tmp_path: Path) -> None:
    log = record(tmp_path, jobs=3)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:5]))
    with pytest.raises(UserError, match="no job of this log has ended"):
        read_recording(RunLog(log))


def test_starts_and_joining_workers_take_as_long_as_recorded(tmp_path: Path) -> None:
    costs = paper_numbers().costs
    trace, _ = read_recording(RunLog(record(tmp_path, policy="equi", mechanism="elastic")))
    trainings = [e.training for e in trace.jobs if isinstance(e.training, RecordedTraining)]
    for training in trainings:
        assert training.start_seconds == pytest.approx(costs.cold_start_seconds)
    joins = [t.join_seconds for t in trainings if t.join_seconds is not None]
    assert joins
    for seconds in joins:  # half a step more or less
        assert seconds == pytest.approx(costs.worker_start_seconds, abs=1.0)


def test_what_was_not_measured_is_assumed(tmp_path: Path) -> None:
    trace, _ = read_recording(RunLog(record(tmp_path)))
    training = trace.jobs[0].training
    assert isinstance(training, RecordedTraining)
    costs = paper_numbers().costs
    quick = replace(training, start_seconds=0.5, join_seconds=0.0)
    unknown = replace(training, start_seconds=None, join_seconds=None)
    assert RecordedPhysics(quick).switch.first_start == 0.5
    assert RecordedPhysics(quick).switch.join == 0.0
    assert RecordedPhysics(unknown).switch.first_start == costs.cold_start_seconds
    assert RecordedPhysics(unknown).switch.join == costs.worker_start_seconds
