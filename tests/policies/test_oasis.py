"""OASiS: its dynamic program against brute force, admission, and refusals that users see."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import Cluster, Decision, EndReason, Event, Job, JobId, Scheduler, View
from ones.core import events as ev
from ones.core.plan import Finish, PlanAdopted
from ones.core.view import JobView
from ones.errors import BrokenPolicyError, InvalidSettingError
from ones.lab.runs import Run, RunSpec
from ones.models.oracle import RemainingWork
from ones.models.slot_plan import PlanTable, work_units
from ones.policies import create
from ones.policies.fifo import Fifo


@settings(max_examples=40, deadline=None)
@given(
    work=st.integers(1, 7),
    prices=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5),
    room=st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
def test_the_cheapest_plan_is_that_of_brute_force(
    work: int, prices: list[float], room: list[int]
) -> None:
    units = {1: 1, 2: 2, 4: 3}
    table = PlanTable(work, units, prices, room[: len(prices)])
    for slots, cost in table.ends():
        best = inf
        for sizes in product((0, 1, 2, 4), repeat=slots):
            fits = all(size <= free for size, free in zip(sizes, room, strict=False))
            if fits and sum(units.get(size, 0) for size in sizes) >= work:
                best = min(best, sum(s * p for s, p in zip(sizes, prices, strict=False)))
        plan = table.plan(slots)
        assert cost == pytest.approx(best)
        assert sum(s * p for s, p in zip(plan, prices, strict=False)) == pytest.approx(cost)
        assert sum(units.get(size, 0) for size in plan) >= work


def test_work_is_rounded_up_and_speed_down() -> None:
    assert work_units(100.0, {1: 10.0, 2: 19.0}) == (40, {1: 4, 2: 7})
    assert work_units(5.0, {1: 100.0})[0] == 1


def oracle(job: JobView, gpus: int, batch: int) -> RemainingWork:
    """Ten minutes on one GPU, linear."""
    return RemainingWork(10.0, 60.0 / gpus)


def arrivals(gpus: int, jobs: int) -> Scheduler:
    policy = create("oasis", oracle=oracle, knowledge="oracle", patience=1.5, horizon=30)
    scheduler = Scheduler(Cluster.of(gpus), policy)
    for i in range(jobs):
        job = Job(id=JobId(f"j{i}"), submitted_at=0.0, requested_batch=64, max_gpus=1)
        plan = scheduler.handle(ev.JobSubmitted(0.0, job))
        for action in plan.actions:
            if isinstance(action, Finish):
                event = ev.JobEnded(0.0, action.job, action.reason, action.message)
                scheduler.handle(event)
    return scheduler


def test_prices_rise_until_jobs_are_refused_with_a_reason() -> None:
    scheduler = arrivals(4, 12)
    refused = [o for o in scheduler.state.ended.values() if o.reason is EndReason.REFUSED]
    assert refused
    assert len(scheduler.state.records) >= 4
    assert refused[0].message.startswith("Refused: the GPUs that it needs cost ")
    assert not refused[0].reason.completed
    assert len(arrivals(64, 12).state.ended) == 0


def test_a_higher_priority_is_admitted_where_a_lower_one_is_refused() -> None:
    for priority, admitted in ((-100.0, False), (100.0, True)):
        scheduler = arrivals(2, 8)
        job = Job(
            id=JobId("x"), submitted_at=0.0, requested_batch=64, priority=priority, max_gpus=1
        )
        plan = scheduler.handle(ev.JobSubmitted(0.0, job))
        ends = [a for a in plan.actions if isinstance(a, Finish) and a.job == "x"]
        assert bool(ends) is not admitted


def test_a_job_whose_deadline_cannot_be_met_is_worth_nothing() -> None:
    policy = create("oasis", oracle=oracle, knowledge="oracle")
    scheduler = Scheduler(Cluster.of(4), policy)
    for name, deadline in (("late", 30.0), ("soon", 3600.0)):
        job = Job(
            id=JobId(name), submitted_at=0.0, requested_batch=64, max_gpus=1, deadline=deadline
        )
        scheduler.handle(ev.JobSubmitted(0.0, job))
    assert list(scheduler.state.schedule) == ["soon"]


def test_without_refusals_every_job_ends() -> None:
    row = Run(
        RunSpec(policy="oasis", settings={"refuse": False}, jobs=10, gpus=8, seed=1)
    ).carry_out()
    assert (row["finished"], row["refused"]) == (10, 0)


class Refuser(Fifo):
    """Refuses a job, whatever its phase."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self.job = JobId(job)

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        pass

    def decide(self, view: View) -> Decision:
        if self.job in view.jobs:
            return Decision(schedule=view.schedule, refused={self.job: "no"})
        return Decision(schedule=view.schedule)


def test_a_refused_job_leaves_the_queue_at_once() -> None:
    scheduler = Scheduler(Cluster.of(1), Refuser("a"))
    plan = scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId("a"), submitted_at=0.0)))
    assert plan.actions == (Finish(JobId("a"), EndReason.REFUSED, "no"),)
    assert not scheduler.state.view().n_waiting
    scheduler.handle(ev.JobEnded(0.0, JobId("a"), EndReason.REFUSED, "no"))
    assert scheduler.state.ended[JobId("a")].reason is EndReason.REFUSED


def test_a_job_that_runs_cannot_be_refused() -> None:
    scheduler = Scheduler(Cluster.of(1), Fifo())
    scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId("a"), submitted_at=0.0)))
    scheduler.policy = Refuser("a")
    with pytest.raises(BrokenPolicyError, match="job a was refused and does not wait"):
        scheduler.handle(ev.Woke(1.0))


def test_a_deadline_must_be_a_time() -> None:
    with pytest.raises(Exception, match="deadline -1 is not above 0"):
        Job(id=JobId("a"), submitted_at=0.0, deadline=-1)
    with pytest.raises(InvalidSettingError, match="needs an oracle"):
        create("oasis", knowledge="oracle")
