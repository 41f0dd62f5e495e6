"""From any schedule to any other in steps: leaving workers first, then joining ones."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import (
    Cluster,
    Decision,
    Description,
    Event,
    Generation,
    Job,
    JobId,
    Plan,
    PlanAdopted,
    Schedule,
    Scheduler,
    View,
)
from ones.core import events as ev
from ones.core.plan import Prepare, Rescale, Start, Stop, Withdraw
from ones.testing.invariants import check_invariants
from tests.strategies import schedules

CLUSTER = Cluster.of(6, 2)
JOBS = tuple(JobId(f"j{i}") for i in range(4))


class Wish:
    """A policy that wants one schedule, and waits with each job until it may be touched."""

    decides_on: ClassVar[frozenset[type[Event]]] = ev.PROGRESS_EVENTS
    native_mechanism: ClassVar[str] = "elastic"

    def __init__(self) -> None:
        self.target = Schedule()

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        pass

    def decide(self, view: View) -> Decision:
        if any(job.pinned for job in view.jobs.values()):
            return Decision(schedule=view.schedule)
        return Decision(schedule=self.target)

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        pass


def obey(scheduler: Scheduler, plan: Plan, dice: Random) -> int:
    """Answer all orders, in any order, until nothing is left to do. Returns the plans it took."""
    answers: list[Event] = []
    plans = 0

    def take(plan: Plan) -> None:
        nonlocal plans
        plans += bool(plan.actions)
        generation = Generation(plan.number)
        for action in plan.actions:
            record = scheduler.state.records[action.job]
            at, job = scheduler.state.now, action.job
            match action:
                case Start():
                    gpus = action.allocation.gpus
                    answers.extend(ev.WorkerReady(at, job, generation, g) for g in gpus)
                case Rescale():
                    held = record.held
                    assert held is not None
                    leavers = [g for g in held.gpus if g not in action.allocation.gpus]
                    assert scheduler.state.in_place or held.gpus == action.allocation.gpus
                    answers.extend(ev.WorkerLeft(at, job, generation, g) for g in leavers)
                    answers.append(ev.Rescaled(at, job, generation, 0.1))
                case Stop():
                    gone = sorted(record.occupied)
                    answers.extend(ev.WorkerLeft(at, job, generation, g) for g in gone)
                case Prepare() | Withdraw():
                    pass
                case _:
                    raise AssertionError(action)
        dice.shuffle(answers)

    take(plan)
    while answers:
        event = answers.pop()
        take(scheduler.handle(event))
        check_invariants(scheduler.state)
    return plans


@settings(max_examples=200, deadline=None)
@given(schedules(CLUSTER, JOBS), schedules(CLUSTER, JOBS), st.integers(0, 2**32), st.booleans())
def test_diff_reaches_its_target_from_any_schedule(
    a: Schedule, b: Schedule, seed: int, in_place: bool
) -> None:
    dice = Random(seed)
    wish = Wish()
    scheduler = Scheduler(CLUSTER, wish, in_place=in_place)
    for job in JOBS:
        scheduler.handle(ev.JobSubmitted(0.0, Job(id=job, submitted_at=0.0)))
        # as if it had run before: any batch that fits is allowed
        record = scheduler.state.touch(job)
        record.description = Description(dataset_size=1000, base_batch=16)
        record.max_local_batch = 64
    for target in (a, b):
        wish.target = target
        plan = scheduler.handle(ev.Woke(scheduler.state.now))
        plans = obey(scheduler, plan, dice)
        assert scheduler.state.schedule == wish.target
        for job in JOBS:
            record = scheduler.state.records[job]
            assert record.held == wish.target.get(job)
            assert record.occupied == set(record.held.gpus if record.held else ())
        assert plans <= 2 * len(JOBS) + 2  # two strokes each, at the most
