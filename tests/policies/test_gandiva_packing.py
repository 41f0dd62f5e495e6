"""Packing in the simulator: the law of shared GPUs, and pairs that are kept or given up."""

from __future__ import annotations

import pytest

from ones.core import Cluster, Gpu, Job, JobId, NodeId, State
from ones.core import events as ev
from ones.core.cluster import Node
from ones.core.schedule import Allocation
from ones.errors import InvalidSettingError
from ones.policies import create
from ones.sim import Simulator
from ones.sim.gpu_sharing import SHARED, GpuSharing
from ones.sim.kinds import KindPhysics
from ones.sim.sim_job import SimJob
from ones.testing.invariants import check_invariants
from ones.workload import Trace, TraceJob, Training, generate

SMALL, LARGE = "resnet18-cifar10", "vgg16-imagenet"


def training(kind: str, batch: int) -> Training:
    return Training(kind=kind, dataset_size=20_000, base_batch=batch)


def jobs_of(kind: str, batch: int, count: int, epochs: int = 30) -> list[TraceJob]:
    return [
        TraceJob(
            Job(
                id=JobId(f"j{i}"), submitted_at=float(i), kind=kind, requested_batch=batch,
                epochs=epochs,
            ),
            training(kind, batch),
        )
        for i in range(count)
    ]  # fmt: skip


def simulated(jobs: list[TraceJob], *, pack: bool, gpus: int = 2) -> State:
    policy = create("gandiva", pack=pack)
    result = Simulator(Trace.of("jobs", jobs), Cluster.of(gpus), policy).run()
    check_invariants(result.state)
    assert len(result.state.ended) == len(jobs)
    return result.state


def test_a_gpu_has_slots_that_count_as_one_device() -> None:
    node = Cluster.of(4).shared(2).nodes[NodeId("n0")]
    assert (node.gpus, node.slots, node.devices) == (8, 2, 4)
    assert Cluster.of(4).shared(2).n_devices == 4
    with pytest.raises(InvalidSettingError, match="3 GPUs in slots of 2"):
        Node(NodeId("n0"), 3, slots=2)


def sim_job(number: int, kind: str, batch: int, gpu: int) -> SimJob:
    work = training(kind, batch)
    job = SimJob(number, Job(id=JobId(f"j{number}"), submitted_at=0.0), work, KindPhysics(work))
    job.begin(0.0, Allocation.even([Gpu(NodeId("n0"), gpu)], batch))
    return job


@pytest.mark.parametrize(("kind", "batch", "pays"), [(SMALL, 64, True), (LARGE, 128, False)])
def test_packing_pays_for_jobs_that_leave_the_gpu_idle(kind: str, batch: int, pays: bool) -> None:
    """The large jobs do not fit the memory together: they take turns."""
    sharing = GpuSharing(Cluster.of(1).shared(2))
    one, other = sim_job(0, kind, batch, 0), sim_job(1, kind, batch, 1)
    for job in (one, other):
        assert job.allocation is not None
        sharing.enter(job, job.allocation)
    assert sharing.partners(one) == [other]
    rates = sum(1 / sharing.slowdown(job) for job in (one, other))
    assert (rates > 1.0) is pays
    assert rates == pytest.approx(2 * SHARED if pays else SHARED)
    assert sharing.leave(other) == [one]
    assert sharing.slowdown(one) == 1.0


def test_jobs_of_different_gpus_do_not_share() -> None:
    sharing = GpuSharing(Cluster.of(2).shared(2))
    one, other = sim_job(0, SMALL, 64, 0), sim_job(1, SMALL, 64, 3)
    for job in (one, other):
        assert job.allocation is not None
        sharing.enter(job, job.allocation)
    assert sharing.partners(one) == []


def test_small_jobs_end_sooner_on_the_same_gpus() -> None:
    """The same work in less time: the GPUs compute more of the time."""
    jobs = jobs_of(SMALL, 64, 8)
    ends = {
        pack: max(outcome.ended_at for outcome in simulated(jobs, pack=pack).ended.values())
        for pack in (False, True)
    }
    assert ends[True] < 0.75 * ends[False]


def test_large_jobs_are_unpacked_after_a_trial() -> None:
    """A pair that is slower together than in turns is tried, and then given up."""
    jobs = jobs_of(LARGE, 16, 4, epochs=20)
    packed, apart = (simulated(jobs, pack=pack) for pack in (True, False))
    ends = [max(o.ended_at for o in state.ended.values()) for state in (packed, apart)]
    assert ends[0] < 1.15 * ends[1]


def test_utilisation_counts_a_shared_gpu_once() -> None:
    state = simulated(jobs_of(SMALL, 64, 4), pack=True, gpus=1)
    assert 0.0 < state.busy_gpu_seconds <= state.capacity_gpu_seconds
    assert state.busy_devices == 0


def test_a_live_cluster_has_no_second_slot() -> None:
    """Without slots, as live, the policy never gives a GPU to two jobs."""
    policy = create("gandiva", pack=True)
    assert Cluster.of(4).nodes[NodeId("n0")].slots == 1
    assert getattr(policy, "slots_per_gpu", 1) == 2
    assert getattr(create("fifo"), "slots_per_gpu", 1) == 1


def test_a_node_that_returns_has_its_slots_again() -> None:
    trace = generate(jobs=12, seed=3, gap=5.0)
    incidents: list[ev.NodeDown | ev.NodeUp] = [
        ev.NodeDown(60.0, NodeId("n0")),
        ev.NodeUp(200.0, NodeId("n0"), 4),
        ev.NodeUp(300.0, NodeId("n9"), 4),
    ]
    changing = Trace.of("changing", trace.jobs, incidents)
    result = Simulator(changing, Cluster.of(8), create("gandiva")).run()
    check_invariants(result.state)
    assert len(result.state.ended) == 12
    slots = [node.slots for node in result.state.cluster.nodes.values()]
    assert slots == [2, 2, 2]
