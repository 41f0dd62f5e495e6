"""Pollux: its search equals the reference, keeps its rules, and splits as it promises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import Cluster, Event, Generation, Job, JobId, Plan, Scheduler
from ones.core import events as ev
from ones.models.allocation import exact, total
from ones.models.rounds import RestartCosts
from ones.policies import create
from ones.policies.pollux import kernels
from ones.policies.pollux.problem import FLOOR, AllocationProblem, Counts, fitness, power_terms
from ones.policies.pollux.search import NO_LIMIT, GeneticSearch, divide
from ones.sim import Simulator
from ones.workload import Trace, TraceJob, Training, generate
from tests.policies import pollux_reference as reference


def some_problem(
    seed: int, jobs: int = 6, nodes: int = 3, *, power: float = -1.0
) -> AllocationProblem:
    """Sublinear speed-ups, slower over several nodes; some limits; a current state that fits."""
    rng = np.random.default_rng(seed)
    capacity = rng.integers(1, 5, nodes).astype(np.int32)
    gpus = int(capacity.sum())
    sizes = np.arange(gpus + 1)
    one = sizes ** rng.uniform(0.4, 1.0, (jobs, 1))
    values = np.stack([one, one * rng.uniform(0.5, 1.0, (jobs, 1))], axis=1)
    values[:, :, 0] = 0.0
    least = rng.choice([1, 1, 2], jobs).astype(np.int32)
    factors = rng.uniform(0.5, 1.0, (jobs, 1, 1))
    problem = AllocationProblem(
        terms=power_terms(values * factors, power),
        stay=np.zeros(jobs),
        least=least,
        most=np.maximum(least, rng.integers(1, gpus + 1, jobs)).astype(np.int32),
        current=rng.integers(0, 3, (jobs, nodes)).astype(np.int16),
        capacity=capacity,
        closed=rng.random(nodes) < 0.2,
        owner=rng.integers(0, 2, jobs).astype(np.int32),
        room=np.array([NO_LIMIT, rng.integers(1, gpus + 1)], np.int32),
        most_nodes=2,
    )
    reference.repair(problem, problem.current, reference.Stream(seed))
    unmoved = power_terms(values, power)
    for job, row in enumerate(problem.current):
        problem.stay[job] = unmoved[job, int(np.count_nonzero(row) > 1), row.sum()]
    return problem


def check_laws(problem: AllocationProblem, rows: Counts) -> None:
    assert (rows >= 0).all()
    assert (rows.sum(axis=0) <= problem.capacity).all()
    several = np.count_nonzero(rows, axis=1) > 1
    on_card = np.count_nonzero(rows[several], axis=0) + problem.closed
    assert (on_card <= 1).all(), "two jobs of several nodes share a network card"
    sizes = rows.sum(axis=1)
    assert (sizes <= problem.most).all()
    assert ((sizes == 0) | (sizes >= problem.least)).all()
    assert (np.count_nonzero(rows, axis=1) <= problem.most_nodes).all()
    for owner, room in enumerate(problem.room):
        assert sizes[problem.owner == owner].sum() <= room


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_repair_keeps_all_rules_and_changes_nothing_that_keeps_them(seed: int) -> None:
    problem = some_problem(seed)
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 5, problem.current.shape).astype(np.int16)
    state = np.array([seed], np.uint64)
    kernels.repair(problem, rows, np.zeros(rows.shape[1], np.int32), state)
    check_laws(problem, rows)
    again = rows.copy()
    kernels.repair(problem, again, np.zeros(rows.shape[1], np.int32), state)
    assert np.array_equal(again, rows)


@settings(max_examples=8, deadline=None)
@given(seeds, st.sampled_from([-2.0, -1.0, 0.0, 0.5]))
def test_the_compiled_search_equals_the_one_to_be_read(seed: int, power: float) -> None:
    problem = some_problem(seed, power=power)
    jobs, nodes = [[str(i) for i in range(n)] for n in problem.current.shape]
    quick = GeneticSearch(10, 6, seed)
    plain = GeneticSearch(10, 6, seed, operators=reference)
    for _ in range(2):  # the second round begins with what the first has found
        rows, cost = quick.round(problem, jobs, nodes)
        expected, expected_cost = plain.round(problem, jobs, nodes)
        assert np.array_equal(rows, expected)
        assert cost == expected_cost
        check_laws(problem, rows)
    assert quick.save() == plain.save()


def test_fitness_is_the_power_mean() -> None:
    values = np.array([0.5, 2.0, 0.0])
    harmonic = (((values + FLOOR) ** -1).mean()) ** -1
    assert fitness(power_terms(values, -1.0).sum(), 3, -1.0) == pytest.approx(harmonic)
    square = np.sqrt(((values + FLOOR) ** 2).mean())
    assert fitness(power_terms(values, 2.0).sum(), 3, 2.0) == pytest.approx(square)
    geometric = np.exp(np.log(np.maximum(values, FLOOR)).mean())
    assert fitness(power_terms(values, 0.0).sum(), 3, 0.0) == pytest.approx(geometric)


def test_what_a_candidate_costs_follows_from_its_rows() -> None:
    problem = some_problem(3)
    rows = problem.current.copy()
    cost, _ = kernels.appraise(problem, rows)
    assert cost == pytest.approx(problem.stay.sum())
    job = int(np.flatnonzero(rows.sum(axis=1))[0])
    rows[job] = 0
    moved, _ = kernels.appraise(problem, rows)
    assert moved == pytest.approx(cost - problem.stay[job] + problem.terms[job, 0, 0])


def everything(problem: AllocationProblem) -> Iterator[Counts]:
    """All candidates that keep the rules."""
    jobs, nodes = problem.current.shape
    ranges = [range(c + 1) for c in problem.capacity]
    for rows in product(list(product(*ranges)), repeat=jobs):
        if any(sum(row[n] for row in rows) > problem.capacity[n] for n in range(nodes)):
            continue
        candidate = np.array(rows, np.int16).reshape(jobs, nodes)
        try:
            check_laws(problem, candidate)
        except AssertionError:
            continue
        yield candidate


@pytest.mark.parametrize("seed", range(3))
def test_on_small_cases_the_search_finds_the_best_of_all(seed: int) -> None:
    problem = some_problem(seed, jobs=3, nodes=2)
    best = min(kernels.appraise(problem, rows)[0] for rows in everything(problem))
    _, cost = GeneticSearch(100, 100, 1).round(problem, list("abc"), list("xy"))
    assert cost == pytest.approx(best)


def test_jobs_and_nodes_may_come_and_go_between_rounds() -> None:
    search = GeneticSearch(20, 20, 1)
    search.round(some_problem(1, jobs=4, nodes=3), list("abcd"), list("xyz"))
    other = GeneticSearch(2, 20, 1)
    other.load(search.save())
    other._size = 20
    later = some_problem(2, jobs=3, nodes=2)
    found, cost = search.round(later, list("bde"), list("zw"))
    again, again_cost = other.round(later, list("bde"), list("zw"))
    check_laws(later, found)
    assert np.array_equal(found, again)
    assert cost == again_cost


def test_on_any_table_it_comes_near_to_the_exact_division() -> None:
    rng = np.random.default_rng(1)
    sizes = np.arange(9)
    table = -rng.uniform(0.5, 2, (8, 1)) * sizes ** rng.uniform(0.3, 0.9, (8, 1))
    least, most = np.ones(8, np.int32), np.full(8, 8, np.int32)
    best = exact(table, least, most, 16)
    found = divide(table, least, most, 16)
    assert found.sum() <= 16
    assert total(table, found) <= 0.95 * total(table, best)


def test_a_restart_costs_the_young_more() -> None:
    restarts = RestartCosts()
    assert restarts.factor(JobId("a"), 30.0, 30.0) == 0.5
    assert restarts.factor(JobId("a"), 270.0, 30.0) == 0.9
    restarts.load({"counts": {"a": 3}, "places": {}, "pauses": {"a": [50.0, 2.0]}})
    assert restarts.factor(JobId("a"), 270.0, 30.0) == pytest.approx(0.6)
    assert restarts.factor(JobId("a"), 60.0, 30.0) == 0.0
    assert restarts.seconds(JobId("a")) == 25.0


# the policy


def long_job(i: int, epochs: int = 100) -> TraceJob:
    return TraceJob(
        Job(id=JobId(f"j{i}"), submitted_at=0.0, kind="k", requested_batch=64, epochs=epochs),
        Training(kind="resnet50-imagenet", dataset_size=20_000, base_batch=64),
    )


def sizes_over_time(
    policy: str, jobs: list[TraceJob], gpus: int, *, until: float = 1e9, **settings: Any
) -> dict[float, dict[str, int]]:
    """At every change of GPUs, how many each job has."""
    history: dict[float, dict[str, int]] = {}
    trace = Trace.of("some", jobs)
    sim = Simulator(trace, Cluster.of(gpus), create(policy, seed=1, **settings), mechanism="native")

    def look(entry: Event | Plan) -> None:
        if isinstance(entry, Plan) and entry.at <= until:
            held = {str(j): a.n_gpus for j, a in sim.scheduler.state.schedule.items()}
            if not history or held != list(history.values())[-1]:
                history[entry.at] = held

    result = sim.run(look)
    assert all(o.reason.completed for o in result.state.ended.values())
    return history


def test_alone_a_job_doubles_from_round_to_round() -> None:
    history = sizes_over_time("pollux", [long_job(0)], 16)
    grown = [held["j0"] for held in history.values() if "j0" in held]
    assert grown[0] == 1
    assert max(grown) >= 4
    assert all(after <= 2 * before for before, after in pairwise(grown))
    rounds = [at for at, held in history.items() if held]
    assert all(at % 60.0 < 0.01 for at in rounds), "GPUs change in rounds only"


def test_equal_jobs_share_evenly() -> None:
    history = sizes_over_time("pollux", [long_job(i) for i in range(2)], 8, until=400.0)
    assert list(history.values())[-1] == {"j0": 4, "j1": 4}


def test_with_more_jobs_than_gpus_all_gpus_are_used() -> None:
    history = sizes_over_time("pollux", [long_job(i, 10) for i in range(6)], 4, until=70.0)
    assert sorted(list(history.values())[-1].values()) == [1, 1, 1, 1]


def test_dearer_restarts_are_fewer() -> None:
    def restarts(seconds: float) -> int:
        policy = create("pollux", seed=1, restart_seconds=seconds, members=20, generations=20)
        trace = generate(jobs=8, seed=3, gap=20.0)
        result = Simulator(trace, Cluster.of(16), policy, mechanism="elastic").run()
        return sum(o.rescales for o in result.state.ended.values())

    assert restarts(300.0) < restarts(0.1)


def test_a_new_job_starts_at_once_unless_the_setting_makes_it_wait() -> None:
    def starts_after(**settings: Any) -> float:
        scheduler = Scheduler(Cluster.of(8), create("pollux", seed=1, **settings))
        scheduler.handle(ev.JobSubmitted(130.0, Job(id=JobId("a"), submitted_at=130.0)))
        if JobId("a") in scheduler.state.schedule:
            return 130.0
        assert "180" in scheduler.state.records[JobId("a")].note
        assert scheduler.wake_at == 180.0
        scheduler.handle(ev.Woke(180.0))
        assert JobId("a") in scheduler.state.schedule
        return 180.0

    assert starts_after() == 130.0
    assert starts_after(start_at_once=False) == 180.0


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_a_gpu_that_is_drained_is_left_at_once_and_not_in_the_next_round(policy: str) -> None:
    scheduler = Scheduler(Cluster.of(2, 2), create(policy))
    job = JobId("a")
    scheduler.handle(ev.JobSubmitted(61.0, Job(id=job, submitted_at=61.0)))
    [gpu] = scheduler.state.schedule[job].gpus
    scheduler.handle(ev.WorkerReady(62.0, job, Generation(1), gpu))
    scheduler.handle(
        ev.JobDescribed(
            at=62.0, job=job, generation=Generation(1), dataset_size=1000, base_batch=32
        )
    )
    assert scheduler.wake_at == 120.0
    scheduler.handle(ev.GpuSetAside(70.0, gpu, "it is to be looked at"))
    assert scheduler.wake_at < 70.1
    scheduler.handle(ev.Woke(scheduler.wake_at))
    assert gpu not in scheduler.state.schedule[job].gpus
    assert scheduler.wake_at == 120.0
