"""Scenarios that every rival must survive: a wide job among many small ones, and lost nodes."""

from __future__ import annotations

import pytest

from ones.core import Cluster, Job, JobId, NodeId, State
from ones.core import events as ev
from ones.core.job import EndReason
from ones.policies import create
from ones.sim import Simulator
from ones.sim.oracle import oracle_of
from ones.testing.invariants import check_invariants
from ones.workload import Incident, Trace, TraceJob, Training, generate

RIVALS = (
    "afs", "deeprm", "dl2", "drl", "equi", "fifo", "ftf", "gandiva", "oasis", "optimus", "philly",
    "sjf", "slaq", "srsf", "srtf", "tiresias",
)  # fmt: skip


def simulated(policy: str, trace: Trace, gpus: int) -> State:
    made = create(policy, seed=1, oracle=oracle_of(trace, seed=1))
    result = Simulator(trace, Cluster.of(gpus), made, seed=1).run()
    check_invariants(result.state)
    assert not result.state.records, "a job did not end"
    return result.state


@pytest.mark.parametrize("policy", RIVALS)
def test_a_wide_job_ends_although_small_jobs_keep_coming(policy: str) -> None:
    """The wide job needs all GPUs; jobs of one GPU arrive faster than they end, for 8 minutes."""
    training = Training(kind="resnet18-cifar10", dataset_size=20_000, base_batch=128)
    wide = Job(
        id=JobId("wide"), submitted_at=60.0, kind="wide", requested_gpus=4, min_gpus=4,
        requested_batch=512, epochs=3,
    )  # fmt: skip
    small = [
        Job(id=JobId(f"s{i}"), submitted_at=20.0 * i, kind="s", requested_batch=128, epochs=10)
        for i in range(24)
    ]
    jobs = sorted([wide, *small], key=lambda job: job.submitted_at)
    trace = Trace.of("wide", [TraceJob(job, training) for job in jobs])
    state = simulated(policy, trace, 4)
    refused = [o.id for o in state.ended.values() if o.reason is EndReason.REFUSED]
    assert policy == "oasis" or not refused
    assert "wide" in refused or state.ended[JobId("wide")].reason.completed


@pytest.mark.parametrize("policy", RIVALS)
def test_all_jobs_end_although_half_of_the_nodes_are_lost(policy: str) -> None:
    trace = generate(jobs=8, seed=4, gap=10.0)
    incidents: list[Incident] = [
        ev.NodeDown(120.0, NodeId("n0")),
        ev.NodeDown(130.0, NodeId("n3")),
        ev.NodeDraining(140.0, NodeId("n1")),
        ev.NodeUp(900.0, NodeId("n1"), 4),
    ]
    state = simulated(policy, Trace.of("losses", trace.jobs, incidents), 16)
    assert any(outcome.losses for outcome in state.ended.values())
    assert sum(o.reason.completed for o in state.ended.values()) >= (
        1 if policy == "oasis" else len(trace.jobs)
    )
