"""`ones-artifact`: limits in GPUs, the gate of affected jobs, batches with a cap, and the clock."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ones.core import Allocation, Cluster, Event, Gpu, Job, JobId, JobView, NodeId, Plan
from ones.core.events import EpochFinished
from ones.core.plan import Rescale, Start
from ones.errors import UserError
from ones.policies import create
from ones.policies.ones_paper.artifact_limits import GpuLimits, batch_of
from ones.sim import Simulator
from ones.workload import generate
from tests.policies.ones.jobs import a_job

NOW = 100.0


def running(name: str, gpus: int, *, requested: int = 2, seconds: float = 50.0) -> JobView:
    held = Allocation.even([Gpu(NodeId(f"n{i // 4}"), i % 4) for i in range(gpus)], 64 * gpus)
    plain = Job(id=JobId(name), submitted_at=0.0, requested_gpus=requested)
    return replace(
        a_job(), job=plain, number=ord(name), wanted=held, held=held, run_seconds=seconds,
        booked_at=NOW, started_at=1.0,
    )  # fmt: skip


def executed(limits: GpuLimits, *jobs: JobView) -> None:
    for job in jobs:
        limits.finished_epoch(job, 10_000)


def test_the_first_evaluation_counts_as_an_epoch_and_half_an_epoch_as_a_whole() -> None:
    limits, job = GpuLimits(capped=True), running("a", 1)
    limits.reported(job.id)
    assert limits.of(job.id).epochs == 1
    limits.finished_epoch(job, 4_999)
    assert limits.of(job.id).epochs == 1
    limits.finished_epoch(job, 5_000)
    assert limits.of(job.id).epochs == 2
    assert limits.is_executed(job.id)


def test_the_limit_doubles_when_the_job_holds_it_once_a_deployment() -> None:
    limits = GpuLimits(capped=True)
    for held, most, offer in ((1, 2, 2), (1, 2, 2), (2, 4, 4), (4, 8, 8), (8, 16, 8)):
        job = running("a", held)
        executed(limits, job)
        limits.offer([job], 64, NOW)
        assert (limits.of(job.id).most, limits.now(job)) == (most, offer), "at most 4 x requested"


def test_a64_has_no_caps() -> None:
    limits, job = GpuLimits(capped=False), running("a", 16)
    limits.of(job.id).most = 16
    executed(limits, job)
    limits.offer([job], 16, NOW)
    assert limits.now(job) == 32


def test_a_job_with_fewer_than_two_epochs_keeps_what_it_holds() -> None:
    limits, job = GpuLimits(capped=True), running("a", 1)
    limits.reported(job.id)
    limits.offer([job], 64, NOW)
    assert limits.now(job) == 1
    assert limits.now(replace(job, wanted=None, started_at=None)) == 0


def test_scale_down_halves_the_largest_job_that_holds_half_of_the_cluster_for_long() -> None:
    """2 c / (T / T_med + 1), to even: 2 x 8 / (300 / 50 + 1) = 2.28 -> 2."""
    limits = GpuLimits(capped=True)
    jobs = [running("a", 8, seconds=300.0), running("b", 2), running("c", 2)]
    executed(limits, *jobs)
    limits.of(jobs[0].id).most = 8
    limits.offer(jobs, 16, NOW)
    assert limits.now(jobs[0]) == 2
    limits.offer(jobs, 32, NOW)
    assert limits.now(jobs[0]) == 8, "below half of the cluster it is left alone"


def test_the_median_run_time_is_that_of_all_jobs_that_have_started() -> None:
    """T_med is 290 s with the stopped jobs: 2 x 8 / (300 / 290 + 1) = 7.86 -> 8; else 2."""
    limits = GpuLimits(capped=True)
    jobs = [running("a", 8, seconds=300.0), running("b", 2), running("c", 2)]
    executed(limits, *jobs)
    limits.of(jobs[0].id).most = 8
    stopped = [replace(running(name, 1, seconds=290.0), wanted=None, held=None) for name in "def"]
    unstarted = [replace(job, started_at=None, run_seconds=0.0) for job in (*stopped, stopped[0])]
    limits.offer([*jobs, *stopped, *unstarted], 16, NOW)
    assert limits.now(jobs[0]) == 8


def test_a_stopped_job_without_a_place_loses_half_of_its_limit_each_time() -> None:
    limits, job = GpuLimits(capped=True), running("a", 8)
    limits.of(job.id).most = 8
    limits.stopped(job.id)
    waiting = replace(job, wanted=None)
    found = []
    for _ in range(4):
        found.append(limits.now(waiting))
        limits.rejected(job.id)
    assert found == [8, 4, 2, 1]
    assert limits.of(job.id).most == 1


def test_a_change_of_any_job_makes_every_job_owe_an_epoch() -> None:
    limits, job = GpuLimits(capped=True), running("a", 1)
    executed(limits, job)
    assert limits.may_change(job.id)
    limits.deployed([job.id])
    assert not limits.may_change(job.id)
    executed(limits, job)
    assert limits.may_change(job.id)
    other = GpuLimits(capped=True)
    other.load(json.loads(json.dumps(limits.save())))
    assert other.may_change(job.id)


def test_a_mutation_rate_above_1_is_refused() -> None:
    with pytest.raises(UserError, match=r"mutation 2\.0 is above 1"):
        create("ones-artifact", seed=1, mutation=2.0)


def test_the_batch_is_per_gpu_up_to_the_users_largest() -> None:
    job = a_job(base=64, size=10_000)
    asked = Job(id=job.id, submitted_at=0.0, requested_gpus=4, requested_batch=128, max_batch=100)
    capped = replace(job, job=asked)
    assert [batch_of(job, n) for n in (1, 2, 4)] == [64, 128, 256]
    assert [batch_of(capped, n) for n in (1, 2, 3, 8, 200)] == [32, 64, 96, 96, 200]
    assert batch_of(replace(job, description=None), 2) == 0


@pytest.mark.parametrize("variant", ["a16", "a64"])
def test_it_decides_once_a_second_and_not_in_between(variant: str) -> None:
    log: list[Event | Plan] = []
    policy = create("ones-artifact", seed=1, variant=variant)
    trace = generate(jobs=6, seed=2, gap=3.0)
    simulator = Simulator(trace, Cluster.of(8), policy, mechanism="elastic", seed=1)
    simulator.run(log.append)
    assert len(simulator.scheduler.state.ended) == 6
    starts = [entry.at for entry in log if isinstance(entry, Plan) and entry.actions]
    assert starts[0] == trace.jobs[0].job.submitted_at, "the first job is deployed at once"


def test_a_job_has_its_least_gpus_until_its_first_epoch_however_many_are_idle() -> None:
    """The evaluation before training is the first counted epoch, the first real one the second."""
    log: list[Event | Plan] = []
    policy = create("ones-artifact", seed=1)
    trace = generate(jobs=5, seed=2, gap=3.0)
    Simulator(trace, Cluster.of(16), policy, mechanism="elastic", seed=1).run(log.append)
    epochs: set[JobId] = set()
    for entry in log:
        if isinstance(entry, EpochFinished):
            epochs.add(entry.job)
        elif isinstance(entry, Plan):
            for action in entry.actions:
                if isinstance(action, Start | Rescale) and action.job not in epochs:
                    assert action.allocation.n_gpus == 1, entry
    assert len(epochs) == 5
