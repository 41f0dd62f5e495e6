"""The indexes that keep events at flat cost: equal to brute force, whatever is done to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core import Cluster, Gpu, JobId, Node, NodeId, NodeState
from ones.core.free_gpus import FreeGpus
from ones.core.ordered_index import OrderedIndex
from ones.core.waiting_jobs import WaitingJobs

keys = st.tuples(st.floats(-3, 3), st.integers(0, 300))


@given(st.lists(st.tuples(st.booleans(), keys), max_size=300))
def test_an_ordered_index_is_a_sorted_set(steps: list[tuple[bool, tuple[float, int]]]) -> None:
    index, model = OrderedIndex(), set[tuple[float, int]]()
    for add, key in steps:
        if add and key not in model:
            index.add(key)
            model.add(key)
        elif not add and key in model:
            index.remove(key)
            model.remove(key)
        elif not add:
            with pytest.raises(KeyError):
                index.remove(key)
    assert list(index) == sorted(model)
    assert len(index) == len(model)


def test_an_ordered_index_splits_and_empties_its_blocks() -> None:
    index = OrderedIndex()
    numbers = [(0.0, (7 * i) % 5003) for i in range(5003)]
    for key in numbers:
        index.add(key)
    assert list(index) == sorted(numbers)
    for key in numbers:
        index.remove(key)
    assert len(index) == 0
    assert list(index) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_free_gpus_are_found_by_node_and_by_room(steps: list[tuple[bool, int]]) -> None:
    cluster = Cluster.of(10, 4)
    free = FreeGpus(cluster)
    for node in cluster.nodes.values():
        free.open_node(node)
    everything = list(cluster.gpus())
    model = set(everything)
    for give, index in steps:
        gpu = everything[index]
        node = cluster.nodes[gpu.node]
        if give:
            free.give(gpu, node)
            model.add(gpu)
        else:
            free.take(gpu, node)
            model.discard(gpu)
    assert list(free) == [gpu for gpu in everything if gpu in model]
    assert len(free) == len(model)
    for node in cluster.nodes.values():
        room = sum(g.node == node.id for g in model)
        assert free.room(node.id) == room
        assert node.id in list(free.nodes_with(room))
        assert all(Gpu(node.id, i) in free for i in range(node.gpus) if Gpu(node.id, i) in model)


def test_a_draining_node_takes_nothing_back() -> None:
    node = Node(NodeId("n0"), 2, NodeState.DRAINING)
    free = FreeGpus(Cluster([node]))
    free.give(Gpu(node.id, 0), node)
    assert len(free) == 0


owners = st.sampled_from("abc")


@given(
    st.lists(st.tuples(owners, st.integers(0, 3)), max_size=40),
    st.dictionaries(owners, st.none() | st.integers(0, 4)),
    st.dictionaries(owners, st.integers(0, 4)),
)
def test_jobs_of_owners_without_room_are_hidden_and_the_others_in_order(
    jobs: list[tuple[str, int]], limits: dict[str, int | None], use: dict[str, int]
) -> None:
    waiting = WaitingJobs()
    for number, (owner, priority) in enumerate(jobs):
        waiting.add(JobId(f"j{number}"), owner, (-priority, number))
    for owner, limit in limits.items():
        waiting.set_limit(owner, limit)
    waiting.use.update(use)

    def has_room(owner: str) -> bool:
        limit = limits.get(owner)
        return limit is None or use.get(owner, 0) < limit

    expected = sorted((-p, n) for n, (o, p) in enumerate(jobs) if has_room(o))
    assert list(waiting.visible()) == expected
    assert len(waiting) == len(jobs)
