"""Gandiva: node sets, turns, holes, growth, and the cost of suspending."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import Cluster, Event, Job, JobId, NodeId, Plan
from ones.core import events as ev
from ones.core.cluster import Node
from ones.core.job import Configuration
from ones.core.plan import Start
from ones.policies import create
from ones.policies.gandiva.node_sets import NodeSet, NodeSets
from ones.sim import Simulator
from ones.workload import Trace, TraceJob, Training
from tests.policies.immediate_engine import ImmediateEngine


def sets_of(gpus: int, demands: list[int]) -> NodeSets:
    sets = NodeSets()
    sets.follow(Cluster.of(gpus))
    for i, demand in enumerate(demands):
        sets.assign(JobId(f"j{i}"), demand)
    return sets


def members(sets: NodeSets) -> list[dict[str, int]]:
    return [{str(job): demand for job, demand in nodes.jobs.items()} for nodes in sets]


def test_jobs_of_one_size_share_nodes() -> None:
    assert members(sets_of(12, [2, 1, 2, 1, 4])) == [
        {"j0": 2, "j2": 2},
        {"j1": 1, "j3": 1},
        {"j4": 4},
    ]


def test_on_a_full_cluster_the_least_crowded_nodes_of_that_size_are_shared() -> None:
    sets = sets_of(8, [4, 2, 2, 4, 2])
    assert members(sets) == [{"j0": 4, "j3": 4}, {"j1": 2, "j2": 2, "j4": 2}]
    assert [nodes.height for nodes in sets.crowded()] == [2.0, 1.5]


def test_a_job_of_several_nodes_merges_them_and_they_separate_when_it_ends() -> None:
    sets = sets_of(16, [4, 8, 6])
    assert [nodes.nodes for nodes in sets] == [("n0",), ("n1", "n2"), ("n3",)] or members(sets)
    wide = sets.of(JobId("j1"))
    assert wide is not None
    assert wide.capacity == 8
    hole = sets.remove(JobId("j1"))
    assert hole is not None
    sets.remove(JobId("j2"))
    parts = sets.split(hole, {})
    assert all(len(part.nodes) == 1 for part in parts)


def wished_set(sets: NodeSets, demand: int) -> tuple[NodeId, ...] | None:
    """The rule of choice over all sets in order; None if nodes must be merged."""
    every = list(sets)
    room = [nodes for nodes in every if nodes.capacity - sum(nodes.jobs.values()) >= demand]
    large = [nodes for nodes in every if nodes.capacity >= demand]

    def height(nodes: NodeSet) -> float:
        return sum(nodes.jobs.values()) / nodes.capacity

    def is_for(nodes: NodeSet) -> bool:
        return next(iter(nodes.jobs.values()), 0) == demand

    if alike := list(filter(is_for, room)):
        return min(alike, key=height).nodes
    if empty := [nodes for nodes in room if not nodes.jobs]:
        return min(empty, key=lambda nodes: nodes.capacity).nodes
    if room:
        return min(room, key=lambda nodes: nodes.capacity - sum(nodes.jobs.values())).nodes
    if not any(len(nodes.nodes) == 1 for nodes in large):
        return None
    return min(list(filter(is_for, large)) or large, key=height).nodes


@given(
    st.lists(st.sampled_from([1, 2, 4, 4, 8]), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from([1, 1, 2, 2, 4, 6, 9]), st.booleans()), max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_the_indexes_choose_as_a_scan_of_all_sets(
    widths: list[int], steps: list[tuple[int, bool]]
) -> None:
    sets = NodeSets()
    sets.follow(Cluster([Node(NodeId(f"n{i}"), width) for i, width in enumerate(widths)]))
    present: list[JobId] = []
    for i, (demand, ends) in enumerate(steps):
        if ends and present:
            hole = sets.remove(present.pop(demand % len(present)))
            if hole is not None:
                sets.split(hole, {})
        else:
            wished = wished_set(sets, demand)
            present.append(JobId(f"j{i}"))
            sets.assign(present[-1], demand)
            found = sets.of(present[-1])
            assert wished is None or (found is not None and found.nodes == wished)
        for nodes in sets:
            assert nodes.demand == sum(nodes.jobs.values())
        crowded = [nodes for nodes in sets if nodes.demand > nodes.capacity]
        assert sets.crowded() == crowded
        assert sets.any_crowded is bool(crowded)
        assert list(sets.tallest(9)) == sorted(crowded, key=lambda nodes: -nodes.height)
        again = NodeSets()
        again.load(sets.save())
        assert again.save() == sets.save()


def test_a_job_larger_than_the_cluster_waits_until_it_has_grown() -> None:
    sets = sets_of(4, [8])
    assert dict(sets.homeless) == {"j0": 8}
    sets.follow(Cluster.of(8))
    assert not sets.homeless
    assert members(sets) == [{"j0": 8}]


def test_jobs_of_a_lost_node_are_assigned_to_others() -> None:
    sets = sets_of(8, [4, 4])
    sets.follow(Cluster.of(4))
    assert members(sets) == [{"j0": 4, "j1": 4}]


def test_three_jobs_on_one_node_take_turns_of_a_quantum() -> None:
    world = ImmediateEngine(create("gandiva", quantum=60.0), 4)
    for name in ("a", "b", "c"):
        world.submit(name, gpus=4)
    order = []
    for turn in range(6):
        world.until(turn * 60.0 + 30.0)
        order += world.running
    assert order == ["a", "b", "c", "a", "b", "c"]
    assert world.note("a").startswith("Waiting for its turn of 60 s")


def test_in_a_turn_the_first_jobs_that_fit_run_together() -> None:
    world = ImmediateEngine(create("gandiva"), 4)
    for name, gpus in (("a", 2), ("b", 2), ("c", 2)):
        world.submit(name, gpus=gpus)
    seen = set()
    for turn in range(3):
        world.until(turn * 60.0 + 30.0)
        seen.add(tuple(world.running))
    assert seen == {("a", "b"), ("a", "c"), ("b", "c")}


def test_a_waiting_job_moves_into_the_hole_that_an_ended_job_leaves() -> None:
    world = ImmediateEngine(create("gandiva"), 8)
    for name in ("a", "b", "c"):
        world.submit(name, gpus=4)
    assert world.running == ["a", "b"]
    world.end("b")
    assert world.running == ["a", "c"]
    assert world.preempted == []


def test_a_higher_priority_runs_in_every_turn() -> None:
    world = ImmediateEngine(create("gandiva"), 1)
    world.submit("a")
    world.submit("b", priority=5.0)
    for turn in range(1, 4):
        world.until(turn * 60.0 + 30.0)
        assert world.running == ["b"]


def test_a_job_grows_into_gpus_that_stay_idle_and_shrinks_for_the_next_job() -> None:
    world = ImmediateEngine(create("gandiva", grow_after=60.0), 4)
    world.submit("a", gpus=1)
    record = world.scheduler.state.records[JobId("a")]
    world.tell(
        ev.JobDescribed(
            at=0.0, job=JobId("a"), generation=record.generation, dataset_size=1000, base_batch=64
        )
    )
    world.tell(
        ev.ThroughputMeasured(
            at=1.0,
            job=JobId("a"),
            generation=record.generation,
            configuration=Configuration(1, 1, 64),
            step_seconds=1.0,
            steps=20,
        )
    )
    world.until(59.0)
    assert world.sizes() == {"a": 1}
    world.until(60.0)
    assert world.sizes() == {"a": 4}
    world.submit("b", gpus=2, at=70.0)
    assert world.sizes()["b"] == 2
    assert world.sizes()["a"] <= 2


@pytest.mark.parametrize(("mechanism", "seconds"), [("suspend", 0.5), ("checkpoint", 20.0)])
def test_a_resumed_job_pays_what_its_mechanism_costs(mechanism: str, seconds: float) -> None:
    """Two jobs take turns on one GPU; each resumes on the same GPU."""
    training = Training(kind="resnet50-imagenet", dataset_size=6400, base_batch=64)
    jobs = [
        TraceJob(
            Job(id=JobId(name), submitted_at=0.0, requested_batch=64, epochs=8, kind="k"), training
        )
        for name in ("a", "b")
    ]
    starts: list[float] = []
    ready: list[float] = []

    def record(entry: Event | Plan) -> None:
        if isinstance(entry, Plan) and any(isinstance(a, Start) for a in entry.actions):
            starts.append(entry.at)
        elif isinstance(entry, ev.WorkerReady):
            ready.append(entry.at)

    trace = Trace.of("turns", jobs)
    policy = create("gandiva", pack=False)
    result = Simulator(trace, Cluster.of(1), policy, mechanism=mechanism).run(record)
    assert len(result.state.ended) == 2
    assert sum(outcome.preemptions for outcome in result.state.ended.values()) > 0
    pauses = [end - begin for begin, end in zip(starts, ready, strict=True)][2:]
    assert all(pause >= seconds - 1e-6 for pause in pauses)
    assert min(pauses) == pytest.approx(seconds, rel=0.5)
