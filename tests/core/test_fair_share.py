"""Past use of GPUs: how it decays, what it takes from priorities, and its replay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ones.core import Cluster, Event, Generation, Job, JobId, Plan, Policy, Scheduler, State, drive
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.fair_share import FORGOTTEN, STEP, FairShare, OwnerUse, decayed, memory
from ones.core.job import EndReason
from ones.policies import create
from ones.runlog import decode, encode
from ones.runlog.encoding import decode_snapshot, encode_saved
from ones.sim import Simulator
from ones.testing.chaos import ChaosEngine
from ones.testing.invariants import check_invariants
from ones.workload import Trace, generate

HOUR = 3600.0
seconds = st.floats(0, 1e9)
half_lives = st.floats(1, 1e8)
moments = st.floats(0, 1e8)


# decay


@given(used=seconds, half_life=half_lives, halvings=st.integers(0, 40))
def test_use_halves_with_every_half_life(used: float, half_life: float, halvings: int) -> None:
    use = OwnerUse(used, at=5.0)
    now = 5.0 + halvings * half_life
    assert use.gpu_seconds_at(now, half_life) == pytest.approx(used / 2**halvings, rel=1e-6)
    assert decayed(used, halvings * half_life, half_life) == pytest.approx(used / 2**halvings)


@given(
    half_life=half_lives,
    steps=st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 8)), min_size=1, max_size=12),
)
def test_use_counts_every_moment_by_its_age(
    half_life: float, steps: list[tuple[float, int]]
) -> None:
    """`steps`: (seconds, GPUs that the owner has after them). Compared with the integral."""
    shares, now, before = FairShare(), 0.0, 0
    shares.set(0.0, half_life, {})
    spans = []
    for wait, gpus in steps:
        spans.append((now, now + wait, before))
        now += wait
        shares.occupy("ann", gpus - before, now)
        before = gpus
    expected = sum(
        n
        * memory(half_life)
        * (decayed(1.0, now - end, half_life) - decayed(1.0, now - begin, half_life))
        for begin, end, n in spans
    )
    found = shares.owners.get("ann", OwnerUse()).gpu_seconds_at(now, half_life)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-3)
    assert found <= 8 * memory(half_life) * (1 + 1e-9), "no more than can be remembered"


# penalties


@given(
    used=st.lists(st.floats(0, 1e7), min_size=2, max_size=6),
    later=st.lists(st.floats(1, 1e5), max_size=4),
)
def test_penalties_follow_use_and_stay_below_one(used: list[float], later: list[float]) -> None:
    shares = FairShare()
    shares.set(0.0, 1e4, {f"u{i}": seconds for i, seconds in enumerate(used)})
    now = 0.0
    for wait in [0.0, *later]:
        now += wait
        shares.review(now, 8)
        found = sorted((use.gpu_seconds, use.penalty) for use in shares.owners.values())
        penalties = [penalty for _, penalty in found]
        assert all(0 <= p <= 1 - STEP and p % STEP == 0 for p in penalties)
        assert all(a <= b + STEP for a, b in pairwise(penalties))


def test_a_penalty_stays_while_use_changes_little() -> None:
    shares = FairShare()
    shares.set(0.0, 1000.0, {"ann": memory(1000.0)})
    shares.jobs = {"ann": {JobId("a"): None}, "bob": {JobId("b"): None}}
    assert shares.review(0.0, 2) == ["ann"]
    assert shares.penalty("ann") == 0.5, "an equal share takes a half"
    assert shares.review(100.0, 2) == [], "9 % less"
    assert shares.review(300.0, 2) == ["ann"]
    assert shares.penalty("ann") == pytest.approx(1 - 2 ** -(2**-0.3), abs=STEP / 2)


def test_an_owner_whose_use_has_decayed_is_forgotten() -> None:
    shares = FairShare()
    shares.set(0.0, 10.0, {"ann": 1e3, "bob": 1e3})
    shares.jobs = {"bob": {JobId("b"): None}}
    shares.review(0.0, 4)
    shares.review(10_000.0, 4)
    assert list(shares.owners) == ["bob"]
    assert FORGOTTEN < 0.1


# in the state


def submitted(at: float, name: str, owner: str, priority: float = 0.0) -> ev.JobSubmitted:
    job = Job(
        id=JobId(name), submitted_at=at, owner=owner, priority=priority, requested_batch=8,
        max_gpus=1,
    )  # fmt: skip
    return ev.JobSubmitted(at, job)


def test_the_queue_has_whole_priorities_first_then_past_use_then_submission() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    for event in (
        ev.FairShareSet(0.0, 24 * HOUR, {"ann": 90 * HOUR}),
        submitted(1.0, "runs", "bob"),
        submitted(2.0, "ann-1", "ann"),
        submitted(3.0, "ann-high", "ann", priority=1.0),
        submitted(4.0, "bob-1", "bob"),
        submitted(5.0, "bob-low", "bob", priority=-1.0),
    ):
        scheduler.handle(event)
    order = [job.id for job in scheduler.state.view().waiting]
    assert order == ["ann-high", "bob-1", "ann-1", "bob-low"]
    (ann,) = [job for job in scheduler.state.view().waiting if job.id == "ann-1"]
    assert ann.penalty == -ann.priority > 0.75
    scheduler.handle(ev.PriorityChanged(6.0, JobId("ann-1"), 1.0))
    assert scheduler.state.view().job(JobId("ann-1")).priority == 1.0 - ann.penalty
    scheduler.handle(ev.FairShareSet(7.0, 0.0))
    order = [job.id for job in scheduler.state.view().waiting]
    assert order == ["ann-1", "ann-high", "bob-1", "bob-low"]
    check_invariants(scheduler.state)


class Watched:
    """A policy that notes the jobs that it hears of again."""

    def __init__(self) -> None:
        inner = create("fifo")
        self.decide, self.save, self.load = inner.decide, inner.save, inner.load
        self.decides_on, self.native_mechanism = inner.decides_on, inner.native_mechanism
        self.changed: list[tuple[float, str]] = []

    def observe(self, event: Event | object, view: object) -> None:
        if isinstance(event, ev.JobChanged):
            self.changed.append((event.at, event.job))


def test_policies_hear_of_reordered_jobs_at_reviews_only() -> None:
    watched = Watched()
    policy: Policy = watched
    scheduler = Scheduler(Cluster.of(2), policy)
    scheduler.handle(ev.FairShareSet(0.0, 64 * HOUR, {}))  # a review in every hour
    for name, owner in (("ann-1", "ann"), ("ann-2", "ann"), ("ann-3", "ann"), ("bob-1", "bob")):
        scheduler.handle(submitted(1.0, name, owner))
    for minute in range(1, 60):
        scheduler.handle(ev.Woke(60.0 * minute))
    assert watched.changed == []
    scheduler.handle(ev.Woke(48 * HOUR))
    assert [job for at, job in watched.changed] == ["ann-1", "ann-2", "ann-3"]
    assert scheduler.state.requeued
    assert [job.id for job in scheduler.state.view().waiting] == ["bob-1", "ann-3"]


def test_processes_of_an_ended_job_count_no_more() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    scheduler.handle(ev.FairShareSet(0.0, HOUR, {}))
    (start,) = scheduler.handle(submitted(0.0, "a", "ann")).actions
    gpu = next(iter(scheduler.state.occupants))
    scheduler.handle(ev.WorkerReady(1.0, JobId("a"), Generation(1), gpu))
    scheduler.handle(ev.JobEnded(HOUR, JobId("a"), EndReason.FINISHED))
    use = scheduler.state.fair_share.owners["ann"]
    assert use.gpu_seconds == pytest.approx(memory(HOUR) / 2)
    assert use.gpus == 0
    scheduler.handle(ev.WorkerLeft(HOUR + 9, JobId("a"), Generation(1), gpu))
    assert scheduler.state.fair_share.owners["ann"].gpus == 0
    assert start.job == "a"


def test_without_a_node_the_review_comes_with_the_first_one() -> None:
    """On Ray and Slurm, nodes join after the service has begun to count."""
    scheduler = Scheduler(Cluster(), create("fifo"))
    scheduler.handle(ev.FairShareSet(0.0, 168 * HOUR, {"ann": 1e9}))
    scheduler.handle(submitted(1.0, "ann-1", "ann"))
    assert scheduler.state.records[JobId("ann-1")].penalty == 0.0
    scheduler.handle(ev.NodeUp(2.0, NodeId("n0"), 1))
    assert scheduler.state.records[JobId("ann-1")].penalty == 1 - STEP


# replay


@pytest.mark.parametrize("seed", [1, 3, 5, 7])
@pytest.mark.parametrize("name", ["fifo", "sjf", "tiresias"])
def test_a_replay_and_a_snapshot_have_the_same_use_to_the_last_bit(name: str, seed: int) -> None:
    cluster = Cluster.of(8, 4)
    scheduler = Scheduler(cluster, create(name, seed=1))
    lines: list[str] = []
    middle: list[tuple[int, Any]] = []

    def record(entry: Event | Plan) -> None:
        if not isinstance(entry, Plan) and len(lines) % 20 == 0:  # all entries are applied
            middle.append((len(lines), encode_saved(scheduler.state.snapshot())))
        lines.append(encode(entry))

    drive(scheduler, ChaosEngine(cluster, 10, seed, trouble=0.1), record)
    assert scheduler.state.fair_share.reviews > 1
    last = scheduler.state.snapshot()
    for begin, saved in [(0, None), *middle[1::4]]:
        state = State.restored(decode_snapshot(saved)) if begin else None
        again = Scheduler(cluster, create(name, seed=1), state=state)
        for line in lines[begin:]:
            again.recall(decode(line), observed=not begin)  # type: ignore[arg-type]
        assert again.state.snapshot() == last


def test_a_simulation_lets_the_jobs_of_a_light_user_pass() -> None:
    """One user brings 24 jobs at once; the four of another one come last."""
    drawn = generate(jobs=28, seed=3, gap=1.0, requests="short")
    jobs = [
        replace(entry, job=structs.replace(entry.job, owner="heavy" if i < 24 else "light"))
        for i, entry in enumerate(drawn.jobs)
    ]
    trace = Trace.of("two users", jobs)

    def mean_wait(half_life: float) -> float:
        simulator = Simulator(trace, Cluster.of(8), create("fifo"), seed=1, half_life=half_life)
        ended = simulator.run().state.ended.values()
        return mean(outcome.queue_seconds for outcome in ended if outcome.owner == "light")

    assert mean_wait(600.0) < 0.5 * mean_wait(0.0)
