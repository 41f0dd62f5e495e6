"""Two ways to place jobs, and which of them is the better one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from ones.core.actions import adopt
from ones.core.cluster import Cluster, Gpu
from ones.core.events import JobSubmitted
from ones.core.job import Job, JobId
from ones.core.plan import Plan, Start
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.core.transitions import apply
from ones.core.view import View
from ones.policies.ones.place.placing import Places, keep_places, nodes_of, repack

PER_NODE = 4
Held = dict[JobId, tuple[Gpu, ...]]


def view_of(held: Mapping[JobId, tuple[Gpu, ...]], nodes: int) -> View:
    """Jobs that have these GPUs."""
    state = State(Cluster.of(nodes * PER_NODE, PER_NODE))
    for job in held:
        apply(state, JobSubmitted(0.0, Job(id=job, submitted_at=0.0)))
    starts = [Start(job, Allocation.as_scripted(gpus)) for job, gpus in held.items() if gpus]
    adopt(state, Plan(number=1, at=0.0, actions=tuple(starts)))
    return state.view()


@st.composite
def moments(draw: st.DrawFn) -> tuple[int, Held, dict[JobId, int]]:
    """A cluster, jobs anywhere on it, and sizes that fit it."""
    nodes = draw(st.integers(1, 5))
    gpus = draw(st.permutations(list(Cluster.of(nodes * PER_NODE, PER_NODE).gpus())))
    rest: Iterator[Gpu] = iter(gpus)
    held: Held = {}
    sizes: dict[JobId, int] = {}
    left = len(gpus)
    room = len(gpus)
    for number in range(draw(st.integers(1, 8))):
        job = JobId(f"j{number}")
        has = draw(st.integers(0, min(room, 6)))
        held[job] = tuple(sorted(next(rest) for _ in range(has)))
        room -= has
        sizes[job] = draw(st.sampled_from([n for n in (has, 0, 1, 2, 4, 8) if n <= left]))
        left -= sizes[job]
    return nodes, held, sizes


def check(places: Places, held: Held, sizes: Mapping[JobId, int], nodes: int) -> None:
    assert {job: len(gpus) for job, gpus in places.items()} == {j: n for j, n in sizes.items() if n}
    taken = [gpu for gpus in places.values() for gpu in gpus]
    assert len(set(taken)) == len(taken), "no GPU has two owners"
    assert set(taken) <= set(Cluster.of(nodes * PER_NODE, PER_NODE).gpus())


@given(moments())
def test_keep_places_gives_the_right_numbers_and_moves_no_unchanged_job(
    moment: tuple[int, Held, dict[JobId, int]],
) -> None:
    nodes, held, sizes = moment
    places = keep_places(view_of(held, nodes), held, sizes)
    check(places, held, sizes, nodes)
    for job, gpus in places.items():
        if len(gpus) == len(held[job]):
            assert gpus == held[job]


@given(moments())
def test_repacked_jobs_use_no_more_nodes_than_largest_first_needs(
    moment: tuple[int, Held, dict[JobId, int]],
) -> None:
    nodes, held, sizes = moment
    places = repack(view_of(held, nodes), held, sizes)
    assert places is not None
    check(places, held, sizes, nodes)
    if all(size in (0, 1, 2, 4, 8) for size in sizes.values()):  # powers of two never break
        for gpus in places.values():
            assert nodes_of(gpus) == -(-len(gpus) // PER_NODE)


def test_a_growing_job_moves_to_a_node_that_holds_it() -> None:
    a, b = JobId("a"), JobId("b")
    names = list(Cluster.of(8, PER_NODE).nodes)
    held = {a: (Gpu(names[0], 0), Gpu(names[1], 0)), b: (Gpu(names[0], 1),)}
    places = keep_places(view_of(held, 2), held, {a: 4, b: 1})
    assert nodes_of(places[a]) == 1
    assert places[b] == held[b]
    assert set(places[a]) & set(held[a])


def test_repacked_jobs_keep_their_places_where_possible() -> None:
    a, b, c = JobId("a"), JobId("b"), JobId("c")
    first, second = Cluster.of(8, PER_NODE).nodes
    spread = tuple(Gpu(node, index) for node in (first, second) for index in (0, 1))
    held = {a: spread, b: (Gpu(first, 2), Gpu(first, 3)), c: (Gpu(second, 2), Gpu(second, 3))}
    places = repack(view_of(held, 2), held, {a: 4, b: 2, c: 2})
    assert places is not None
    assert nodes_of(places[a]) == 1
    assert [job for job in (b, c) if places[job] == held[job]], "one of the two need not move"


def test_a_repacked_job_that_shrinks_keeps_its_first_gpus() -> None:
    """Not just any: equal runs place alike, whatever the order of a set."""
    (node,) = Cluster.of(8, 8).nodes
    state = State(Cluster.of(8, 8))
    a = JobId("a")
    gpus = tuple(Gpu(node, index) for index in range(8))
    apply(state, JobSubmitted(0.0, Job(id=a, submitted_at=0.0)))
    adopt(state, Plan(number=1, at=0.0, actions=(Start(a, Allocation.as_scripted(gpus)),)))
    assert repack(state.view(), {a: gpus}, {a: 3}) == {a: gpus[:3]}
