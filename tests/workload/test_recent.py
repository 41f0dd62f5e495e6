"""The last hours of a run log as a workload: also jobs that began before, or have not ended."""

from __future__ import annotations

import pytest

from ones.core import Cluster
from ones.errors import UserError
from ones.lab.runs import Run, RunSpec
from ones.policies import create
from ones.runlog import RunLog
from ones.sim import Simulator
from ones.workload.recent import NO_END, RecentJobs, recent_jobs
from ones.workload.recorded import read_recording
from ones.workload.trace import RecordedTraining


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    directory = tmp_path_factory.mktemp("run")
    Run(RunSpec(policy="fifo", gpus=16, jobs=20, seed=3)).carry_out_into(directory)
    return RunLog(directory / "run.jsonl")


def window(log: RunLog, since: float, until: float) -> RecentJobs:
    entries = (entry for entry in log if entry.at <= until)
    return recent_jobs(log.header, entries, since=since, until=until)


def total(found: RecentJobs, job: str) -> float:
    (training,) = (j.entry.training for j in found.jobs if j.entry.job.id == job)
    assert isinstance(training, RecordedTraining)
    return training.total


def test_a_whole_log_is_the_recording(log: RunLog) -> None:
    found = window(log, 0.0, 1e9)
    trace, _ = read_recording(log)
    assert [job.entry.job.id for job in found.jobs] == [entry.job.id for entry in trace.jobs]
    for job, entry in zip(found.jobs, trace.jobs, strict=True):
        assert job.entry.training == entry.training
        assert (job.assumed, job.began_before, job.fixed) == ("", False, False)
    again = Simulator(found.trace, found.cluster, create("fifo"), seed=9).run().state
    for job in found.jobs:
        outcome = again.ended[job.entry.job.id]
        assert job.completion_seconds == pytest.approx(outcome.completion_seconds, rel=0.15)


def test_times_and_work_count_from_the_begin_of_the_window(log: RunLog) -> None:
    whole = window(log, 0.0, 1e9)
    ends = sorted(job.submitted_at + (job.completion_seconds or 0) for job in whole.jobs)
    since = ends[len(ends) // 2]
    found = window(log, since, 1e9)
    assert {job.entry.job.id for job in found.jobs} < {job.entry.job.id for job in whole.jobs}
    before = [job for job in found.jobs if job.began_before]
    assert before
    for job in before:
        full = next(each for each in whole.jobs if each.entry.job.id == job.entry.job.id)
        assert job.entry.job.submitted_at == 0.0
        assert full.completion_seconds is not None
        assert job.completion_seconds == pytest.approx(
            full.submitted_at + full.completion_seconds - since
        )
        assert job.waiting_seconds <= full.waiting_seconds
    running = [job for job in before if total(found, job.entry.job.id)
               < total(whole, job.entry.job.id)]  # fmt: skip
    assert running, "those that ran have less work left"


def test_jobs_that_have_not_ended_are_taken_with_an_assumed_length(log: RunLog) -> None:
    whole = window(log, 0.0, 1e9)
    ends = sorted(job.submitted_at + (job.completion_seconds or 0) for job in whole.jobs)
    found = window(log, 0.0, ends[len(ends) // 2])
    open_jobs = [job for job in found.jobs if job.completion_seconds is None]
    assert {job.assumed for job in open_jobs} >= {NO_END}
    for job in open_jobs:
        assert isinstance(job.entry.training, RecordedTraining)
        if job.assumed == NO_END and not job.fixed:
            done = job.entry.training.milestones[-2].progress
            assert job.entry.training.total == pytest.approx(2 * done)
    state = Simulator(found.trace, Cluster.of(16), create("equi"), seed=9).run().state
    assert len(state.ended) == len(found.jobs)


def test_a_time_without_jobs_is_refused(log: RunLog) -> None:
    with pytest.raises(UserError, match="no job of this time can be replayed"):
        window(log, 1e8, 1e9)
