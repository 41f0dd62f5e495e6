"""Philly: skipping, locality that is tried and relaxed, and racks."""

from __future__ import annotations

import pytest

from ones.core import Cluster, EndReason, Job, JobId, NodeId, Scheduler
from ones.core import events as ev
from ones.errors import InvalidSettingError
from ones.policies import create
from tests.policies.immediate_engine import ImmediateEngine


def test_a_job_that_does_not_fit_does_not_block_those_behind_it() -> None:
    world = ImmediateEngine(create("philly"), 4)
    for name, gpus in (("a", 3), ("b", 2), ("c", 1)):
        world.submit(name, gpus=gpus)
    assert world.running == ["a", "c"]
    assert world.note("b").startswith("Waiting: needs 2 GPUs at the same time.")
    world.end("c")
    assert world.running == ["a"]
    world.end("a")
    assert world.running == ["b"]
    assert world.preempted == []


def test_locality_is_relaxed_after_the_published_number_of_failures() -> None:
    """Two nodes with one free GPU each: without racks a job of two relaxes after three tries."""
    world = ImmediateEngine(create("philly"), 8)
    world.submit("a", gpus=3)
    world.submit("b", gpus=3)
    world.submit("c", gpus=2, at=10.0)
    assert world.note("c").startswith("Waiting for 2 GPUs: it waits for the fewest nodes of one")
    world.until(10.0 + 3 * 120.0 - 1.0)
    assert "c" not in world.running
    world.until(10.0 + 3 * 120.0)
    assert "c" in world.running
    assert world.note("c") == (
        "Started on 2 GPUs, batch 64: the first job in the queue that fits, on 2 nodes."
    )


def racked() -> ImmediateEngine:
    """Four nodes of two GPUs, in two racks."""
    world = ImmediateEngine(create("philly"), 8, gpus_per_node=2)
    world.scheduler = Scheduler(Cluster.of(8, 2, nodes_per_rack=2), world.scheduler.policy)
    return world


def racks_of(world: ImmediateEngine, job: str) -> set[str]:
    nodes = world.scheduler.state.cluster.nodes
    gpus = world.scheduler.state.schedule[JobId(job)].gpus
    return {nodes[gpu.node].rack for gpu in gpus}


def test_a_job_of_several_nodes_gets_the_emptiest_rack() -> None:
    world = racked()
    world.submit("a", gpus=1)
    world.submit("b", gpus=4)
    assert racks_of(world, "b") == {"r1"}


def test_a_job_of_several_nodes_waits_for_a_rack_and_then_takes_any_nodes() -> None:
    world = racked()
    for name in ("a", "b", "c"):
        world.submit(name, gpus=2)
    world.end("a")  # one node of each rack is free
    world.submit("wide", gpus=4, at=10.0)
    assert "wide" not in world.running
    world.until(10.0 + 6 * 120.0 - 1.0)
    assert "wide" not in world.running
    world.until(10.0 + 6 * 120.0)
    assert racks_of(world, "wide") == {"r0", "r1"}


def test_a_node_keeps_its_rack_when_it_returns() -> None:
    world = racked()
    world.tell(ev.NodeDown(1.0, NodeId("n0")))
    world.tell(ev.NodeUp(2.0, NodeId("n0"), 2))
    world.tell(ev.NodeUp(3.0, NodeId("n9"), 2, rack="r9"))
    nodes = world.scheduler.state.cluster.nodes
    assert [nodes[NodeId(name)].rack for name in ("n0", "n9")] == ["r0", "r9"]


def test_the_limit_of_an_owner_blocks_no_other_owner() -> None:
    scheduler = Scheduler(Cluster.of(8), create("philly"))
    scheduler.handle(ev.OwnerLimitSet(0.0, "ann", 3))
    for i, (owner, gpus) in enumerate((("ann", 2), ("ann", 2), ("bob", 2))):
        job = Job(id=JobId(f"j{i}"), submitted_at=0.0, owner=owner, requested_gpus=gpus)
        scheduler.handle(ev.JobSubmitted(0.0, job))
    assert list(scheduler.state.schedule) == ["j0", "j2"]
    scheduler.handle(ev.JobEnded(1.0, JobId("j0"), EndReason.FINISHED))
    assert "j1" in scheduler.state.schedule


def test_settings_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(InvalidSettingError, match="relax_to_any 2 is below relax_to_rack 3"):
        create("philly", relax_to_any=2)
