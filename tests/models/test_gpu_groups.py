"""GPUs that are close to one another stay together; where all are alike nothing is different."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ones.core import Cluster, Gpu, JobId, Node, NodeId, State
from ones.core import events as ev
from ones.core.job import EndReason, Generation, Job
from ones.core.scheduler import Scheduler
from ones.core.view import View
from ones.models.even_placement import EvenPlacement
from ones.models.gpu_groups import count_groups, pick_gpus
from ones.models.packing import GpuPool
from ones.policies import create

N0 = NodeId("n0")


@st.composite
def grouped_nodes(draw: st.DrawFn) -> Node:
    gpus = draw(st.integers(1, 8))
    groups = draw(st.lists(st.integers(0, 3), min_size=gpus, max_size=gpus))
    return Node(N0, gpus, groups=tuple(groups))


subsets = st.sets(st.integers(0, 7))


def on(node: Node, indexes: set[int]) -> list[Gpu]:
    return [Gpu(node.id, i) for i in sorted(indexes) if i < node.gpus]


def fewest(rooms: list[int], n_gpus: int) -> int:
    """The minimum number of groups for these GPUs: largest groups first."""
    needed = 0
    for room in sorted(rooms, reverse=True):
        if n_gpus <= 0:
            break
        n_gpus -= room
        needed += 1
    return needed


@given(grouped_nodes(), subsets, st.integers(0, 9))
def test_what_is_picked_was_free_and_is_in_the_fewest_groups(
    node: Node, indexes: set[int], n_gpus: int
) -> None:
    free = on(node, indexes)
    chosen = pick_gpus(free, n_gpus, node.groups)
    assert len(chosen) == len(set(chosen)) == min(n_gpus, len(free))
    assert set(chosen) <= set(free)
    there = [node.groups[gpu.index] for gpu in free]
    rooms = {group: there.count(group) for group in there}
    assert count_groups(chosen, node.groups) == fewest(list(rooms.values()), n_gpus)
    if n_gpus in rooms.values() and chosen:
        (group,) = {node.groups[gpu.index] for gpu in chosen}
        assert rooms[group] == n_gpus, "a group that just fits is filled, and none is broken"


@given(grouped_nodes(), subsets, subsets, st.integers(0, 9))
def test_a_job_grows_within_its_own_group_first(
    node: Node, indexes: set[int], held: set[int], n_gpus: int
) -> None:
    free, mine = on(node, indexes - held), on(node, held)
    chosen = pick_gpus(free, n_gpus, node.groups, mine)
    own = {node.groups[gpu.index] for gpu in mine}
    near = [gpu for gpu in free if node.groups[gpu.index] in own]
    assert sum(gpu in near for gpu in chosen) == min(n_gpus, len(near))


@given(grouped_nodes(), subsets, subsets, st.integers(0, 9))
def test_without_groups_it_is_the_first_ones(
    node: Node, indexes: set[int], held: set[int], n_gpus: int
) -> None:
    free = on(node, indexes)
    first = free[:n_gpus]
    assert pick_gpus(free, n_gpus, (), on(node, held)) == first
    assert pick_gpus(free, n_gpus, (0,) * node.gpus) == first, "nor with one for all"
    assert pick_gpus(free, n_gpus, tuple(range(node.gpus))) == first, "nor with one for each"


@given(grouped_nodes(), st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=30))
def test_free_gpus_and_the_cluster_count_group_by_group(
    node: Node, steps: list[tuple[bool, int]]
) -> None:
    state = State(Cluster([node]))
    everything = list(state.cluster.gpus())
    numbers = [node.groups[gpu.index] for gpu in everything]
    assert numbers == sorted(numbers)
    model = set(everything)
    for give, index in steps:
        gpu = Gpu(N0, index % node.gpus)
        if give:
            state.free.give(gpu, node)
            model.add(gpu)
        else:
            state.free.take(gpu, node)
            model.discard(gpu)
    assert list(state.free) == [gpu for gpu in everything if gpu in model]


def view_of(*free: set[int], groups: tuple[int, ...] = (0, 0, 1, 1)) -> View:
    """Nodes of four GPUs, of which these are free."""
    nodes = [Node(NodeId(f"n{i}"), 4, groups=groups) for i in range(len(free))]
    state = State(Cluster(nodes))
    for node, indexes in zip(state.cluster.nodes.values(), free, strict=True):
        for index in set(range(4)) - indexes:
            state.free.take(Gpu(node.id, index), node)
    return state.view()


def shown(gpus: tuple[Gpu, ...] | None) -> list[str]:
    assert gpus is not None
    return list(map(str, gpus))


def test_of_nodes_with_equal_room_the_one_with_a_whole_group_is_taken() -> None:
    free = {0, 2}, {1, 3}, {2, 3}
    assert shown(GpuPool(view_of(*free)).place(2)) == ["n2/2", "n2/3"]
    assert shown(GpuPool(view_of(*free, groups=())).place(2)) == ["n0/0", "n0/2"], "else the first"


def test_a_job_that_shrinks_leaves_whole_groups_behind() -> None:
    held = tuple(Gpu(N0, i) for i in (1, 2, 3))
    room = GpuPool(view_of(set()))
    assert shown(room.shrink(held, 2)) == ["n0/2", "n0/3"]
    room = GpuPool(view_of(set()))
    assert shown(room.shrink(held, 1)) == ["n0/1"], "and so a pair is free"


def test_a_job_that_grows_fills_its_group() -> None:
    assert shown(GpuPool(view_of({0, 1, 3})).grow((Gpu(N0, 2),), 2)) == ["n0/2", "n0/3"]


def test_optimus_fills_groups_too() -> None:
    assert shown(EvenPlacement(view_of({1, 2, 3}), ()).place(2)) == ["n0/2", "n0/3"]


sizes = st.lists(st.integers(1, 9), max_size=8)


@given(st.lists(subsets.map(lambda s: {i % 4 for i in s}), min_size=1, max_size=5), sizes)
def test_groups_change_neither_how_many_nor_on_how_many_nodes(
    free: list[set[int]], wanted: list[int]
) -> None:
    flat, grouped = GpuPool(view_of(*free, groups=())), GpuPool(view_of(*free))
    for size in wanted:
        one, other = flat.place(size), grouped.place(size)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert len(set(other)) == size
            assert len({gpu.node for gpu in one}) == len({gpu.node for gpu in other})
    assert len(flat) == len(grouped)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=24), st.permutations([0, 0, 1, 1]))
def test_jobs_of_two_never_break_a_pair(steps: list[bool], groups: list[int]) -> None:
    """Whatever comes and goes: as long as all want pairs, all have them."""
    nodes = [Node(NodeId(f"n{i}"), 4, groups=tuple(groups)) for i in range(3)]
    scheduler = Scheduler(Cluster(nodes), create("fifo"))
    running: list[JobId] = []
    for number, comes in enumerate(steps):
        at = float(number)
        if comes:
            job = Job(id=JobId(f"j{number}"), submitted_at=at, requested_gpus=2, min_gpus=2)
            scheduler.handle(ev.JobSubmitted(at, job))
        elif running:
            gone = running.pop(0)
            gpus = scheduler.state.schedule[gone].gpus
            scheduler.handle(ev.JobEnded(at, gone, EndReason.FINISHED))
            for gpu in gpus:
                scheduler.handle(ev.WorkerLeft(at, gone, Generation(number + 100), gpu))
        for job_id, allocation in scheduler.state.schedule.items():
            assert count_groups(allocation.gpus, tuple(groups)) == 1
            if job_id not in running:
                running.append(job_id)


def test_a_node_that_comes_back_with_groups_has_them() -> None:
    scheduler = Scheduler(Cluster(), create("fifo"))
    scheduler.handle(ev.NodeUp(0.0, N0, 4))
    assert not scheduler.state.cluster.grouped
    scheduler.handle(ev.NodeUp(1.0, N0, 4, (0, 1, 0, 1)))
    scheduler.handle(ev.NodeDraining(2.0, N0))
    scheduler.handle(ev.GpuSetAside(2.0, Gpu(N0, 2)))
    assert scheduler.state.cluster.nodes[N0].groups == (0, 1, 0, 1)
    scheduler.handle(ev.NodeUp(3.0, N0, 4, (0, 1, 0, 1)))
    assert [gpu.index for gpu in scheduler.state.free] == [0, 1, 3], "2 is still set aside"
    again = State.restored(scheduler.state.snapshot())
    assert again.cluster == scheduler.state.cluster
    assert list(again.free) == list(scheduler.state.free)
    assert replace(scheduler.state.cluster.nodes[N0], groups=()).order == range(4)
