"""Sia: the program's optimum, the configurations, and where jobs are put."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import NodeId
from ones.core.job import JobId
from ones.models.allocation import exact, total
from ones.models.whole_nodes import WholeNodePlacement
from ones.policies.sia import Choice, Floats, sizes_for, solve
from tests.policies.test_pollux import long_job, sizes_over_time

seeds = st.integers(0, 2**32 - 1)


def some_choices(seed: int, jobs: int, gpus: int) -> list[Choice]:
    rng = np.random.default_rng(seed)
    return [
        Choice(job, c, round(float(c ** -rng.uniform(0.1, 0.5)), 2))
        for job in range(jobs)
        for c in sizes_for(4, gpus)
    ]


def total_cost(choices: list[Choice], waiting: Floats, sizes: list[int]) -> float:
    """The sum that the program minimises."""
    costs = {(c.job, c.gpus): c.cost for c in choices}
    return sum(costs[j, c] if c else float(waiting[j]) for j, c in enumerate(sizes))


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(1, 8), st.sampled_from([0.5, 1.1, 2.0]))
def test_the_program_finds_what_trying_everything_finds(
    seed: int, jobs: int, gpus: int, waiting_cost: float
) -> None:
    choices = some_choices(seed, jobs, gpus)
    waiting = np.full(jobs, waiting_cost)
    owners = [([0, 1][:jobs], 3)]
    found = solve(choices, gpus, waiting, owners)
    options = [0, *sizes_for(4, gpus)]
    best = min(
        total_cost(choices, waiting, list(sizes))
        for sizes in product(options, repeat=jobs)
        if sum(sizes) <= gpus and sum(sizes[:2]) <= 3
    )
    assert sum(found) <= gpus
    assert sum(found[:2]) <= 3
    assert total_cost(choices, waiting, found) == pytest.approx(best, abs=1e-3)


def test_with_many_jobs_it_equals_the_exact_division() -> None:
    jobs, gpus = 40, 64
    choices = some_choices(1, jobs, gpus)
    waiting = np.full(jobs, 1.1)
    table = np.full((jobs, gpus + 1), 1e6)
    table[:, 0] = waiting
    for choice in choices:
        table[choice.job, choice.gpus] = choice.cost
    least, most = np.ones(jobs, np.int32), np.full(jobs, gpus, np.int32)
    best = exact(table, least, most, gpus, use_all=False)
    found = solve(choices, gpus, waiting)
    # the solver stops within a part of 1e-4
    assert total_cost(choices, waiting, found) <= total(table, best) * (1 + 1e-3)
    assert found == solve(choices, gpus, waiting)


def test_configurations_are_powers_of_two_and_whole_nodes() -> None:
    assert sizes_for(4, 20) == [1, 2, 4, 8, 12, 16, 20]
    assert sizes_for(8, 24) == [1, 2, 4, 8, 16, 24]
    assert sizes_for(6, 13) == [1, 2, 4, 6, 12]
    assert sizes_for(4, 3) == [1, 2]
    assert sizes_for(1, 3) == [1, 2, 3]


NODES = [NodeId(f"n{i}") for i in range(4)]


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_every_job_is_placed_and_unchanged_jobs_stay_if_possible(seed: int) -> None:
    """Powers of two and whole nodes always fit: no job is broken over more nodes than it needs."""
    rng = np.random.default_rng(seed)
    sizes = {node: 4 for node in NODES}

    def draw(prefix: str) -> dict[JobId, int]:
        wanted: dict[JobId, int] = {}
        left = 16
        while left and len(wanted) < 12:
            c = int(rng.choice([c for c in (1, 2, 4, 8, 12) if c <= left]))
            wanted[JobId(f"{prefix}{len(wanted)}")] = c
            left -= c
        return wanted

    before = draw("j")
    held = WholeNodePlacement(sizes, sizes, {}, before).place_all()
    wanted = {job: size for job, size in draw("j").items()}
    found = WholeNodePlacement(sizes, sizes, held, wanted).place_all()
    used = dict.fromkeys(NODES, 0)
    for job, counts in found.items():
        assert sum(counts.values()) == wanted[job]
        assert len(counts) == -(-wanted[job] // 4)
        for node, count in counts.items():
            used[node] += count
    assert all(count <= 4 for count in used.values())
    assert set(found) == set(wanted)
    if wanted == before:
        assert found == held


def test_a_small_job_makes_way_for_a_whole_node() -> None:
    a, b, c = JobId("a"), JobId("b"), JobId("c")
    sizes = {NODES[0]: 4, NODES[1]: 4}
    held = {a: {NODES[0]: 2}, b: {NODES[1]: 1}}
    found = WholeNodePlacement(sizes, sizes, held, {a: 2, b: 1, c: 4}).place_all()
    assert found[a] == {NODES[0]: 2}  # the smaller one moves
    assert found[b] == {NODES[0]: 1}
    assert found[c] == {NODES[1]: 4}


def test_broken_room_is_used_when_nothing_else_helps() -> None:
    a = JobId("a")
    found = WholeNodePlacement(
        {NODES[0]: 3, NODES[1]: 1}, {NODES[0]: 4, NODES[1]: 4}, {}, {a: 4}
    ).place_all()
    assert found[a] == {NODES[0]: 3, NODES[1]: 1}


def test_alone_a_job_doubles_from_round_to_round() -> None:
    history = sizes_over_time("sia", [long_job(0)], 16)
    grown = [held["j0"] for held in history.values() if "j0" in held]
    assert grown[:3] == [1, 2, 4]
    assert all(size in sizes_for(4, 16) for size in grown)
    assert all(after <= 2 * before for before, after in pairwise(grown))


def test_equal_jobs_share_evenly() -> None:
    history = sizes_over_time("sia", [long_job(i) for i in range(2)], 8, until=400.0)
    assert list(history.values())[-1] == {"j0": 4, "j1": 4}


def test_with_more_jobs_than_gpus_each_holds_one() -> None:
    jobs = [long_job(i, 30) for i in range(6)]
    history = sizes_over_time("sia", jobs, 4, until=130.0, waiting_cost=2.0)
    assert all(sorted(held.values()) == [1, 1, 1, 1] for held in history.values() if held)
    # as published, a second GPU is worth more than to let another job in
    literal = sizes_over_time("sia", jobs, 4, until=130.0)
    assert max(max(held.values(), default=0) for held in literal.values()) == 2
