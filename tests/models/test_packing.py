"""Few nodes, little broken room, and never a GPU twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ones.core import Cluster, Gpu, NodeId, State
from ones.core.view import View
from ones.models.packing import GpuPool


def view_with(free: list[int], per_node: int = 4) -> View:
    """Nodes with these numbers of free GPUs."""
    cluster = Cluster.of(per_node * len(free), per_node)
    state = State(cluster)
    for node, room in zip(cluster.nodes.values(), free, strict=True):
        for index in range(room, per_node):
            state.free.take(Gpu(node.id, index), node)
    return state.view()


def nodes(gpus: tuple[Gpu, ...] | None) -> list[str]:
    assert gpus is not None
    return sorted({gpu.node for gpu in gpus})


def test_a_small_job_goes_where_it_just_fits() -> None:
    assert nodes(GpuPool(view_with([4, 2, 3])).place(2)) == ["n1"]
    assert nodes(GpuPool(view_with([4, 1, 3])).place(2)) == ["n2"]


def test_a_large_job_takes_whole_nodes_first() -> None:
    assert nodes(GpuPool(view_with([3, 4, 2, 4])).place(8)) == ["n1", "n3"]
    assert nodes(GpuPool(view_with([3, 4, 2, 4])).place(10)) == ["n1", "n2", "n3"]


def test_a_job_that_grows_stays_with_its_own() -> None:
    room = GpuPool(view_with([2, 4]))
    held = (Gpu(NodeId("n0"), 2),)
    assert nodes(room.grow(held, 3)) == ["n0"]


def test_a_job_that_shrinks_leaves_the_nodes_where_it_has_least() -> None:
    room = GpuPool(view_with([0, 0]))
    held = (Gpu(NodeId("n0"), 0), Gpu(NodeId("n1"), 0), Gpu(NodeId("n1"), 1))
    assert nodes(room.shrink(held, 2)) == ["n1"]
    assert len(room) == 1


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.lists(st.integers(1, 9), max_size=6),
)
def test_what_is_placed_was_free_and_is_placed_once(free: list[int], sizes: list[int]) -> None:
    room = GpuPool(view_with(free))
    available = set(view_with(free).free)
    placed: list[Gpu] = []
    for size in sizes:
        gpus = room.place(size)
        if gpus is None:
            assert size > len(available) - len(placed)
            continue
        assert len(gpus) == size
        placed += gpus
    assert len(set(placed)) == len(placed)
    assert set(placed) <= available
    assert len(room) == len(available) - len(placed)
