"""Progress in the unit of a job, and stop rules by steps, samples and tokens."""

from __future__ import annotations

import pytest

from ones.control.readmodels.job_cards import WorkerPlaces, card_of, card_of_ended
from ones.core import EndReason, Phase, Scheduler
from ones.core import events as ev
from ones.core.plan import Finish
from ones.stopping import StopRule
from ones.wire.work import Unit, Work
from tests.core.test_told_values import FIRST, A, running


def steps(
    scheduler: Scheduler, done: int, work: Work | None = None, planned: int | None = 20
) -> object:
    """`done`: samples of the first epoch."""
    return scheduler.handle(
        ev.StepsDone(
            at=scheduler.state.now + 1.0, job=A, generation=FIRST, epoch=1, steps=done // 64,
            samples=done, planned_epochs=planned, work=work,
        )
    )  # fmt: skip


RULES = [
    (StopRule(max_steps=100), Work(Unit.STEPS, 99, 1000), Work(Unit.STEPS, 100, 1000), "steps"),
    (StopRule(max_tokens=50), Work(Unit.TOKENS, 49, None), Work(Unit.TOKENS, 50, None), "tokens"),
    (StopRule(max_samples=128), None, None, "samples"),
    (StopRule(max_steps=2), None, None, "steps"),  # of the base batch, 64
]


@pytest.mark.parametrize(("rule", "before", "after", "reason"), RULES)
def test_a_rule_ends_a_job_that_has_done_its_work(
    rule: StopRule, before: Work | None, after: Work | None, reason: str
) -> None:
    scheduler, _ = running(stop=rule)
    steps(scheduler, 127, before)
    assert scheduler.state.records[A].phase is Phase.RUNNING
    steps(scheduler, 128, after)
    record = scheduler.state.records[A]
    assert record.ending is not None
    assert (record.ending.reason, record.ending.message) == (EndReason.FINISHED, reason)


def test_a_job_without_tokens_is_not_ended_by_a_rule_about_them() -> None:
    scheduler, _ = running(stop=StopRule(max_tokens=1))
    steps(scheduler, 999, Work(Unit.STEPS, 15, 16))
    assert scheduler.state.records[A].ending is None


@pytest.mark.parametrize(
    ("rule", "work", "planned"),
    [
        (StopRule(), Work(Unit.STEPS, 1, 1000), 20),
        (StopRule(max_steps=90), Work(Unit.STEPS, 1, 1000), 2),
        (StopRule(max_steps=9000), Work(Unit.STEPS, 1, 1000), 20),
        (StopRule(max_samples=2500), None, 3),  # an epoch has 1,000 samples
        (StopRule(max_tokens=5), Work(Unit.TOKENS, 1, 10), 10),
    ],
)
def test_the_planned_epochs_end_with_the_rule(
    rule: StopRule, work: Work | None, planned: int
) -> None:
    scheduler, _ = running(stop=rule)
    steps(scheduler, 64, work)
    assert scheduler.state.records[A].job.epochs == planned


def test_a_start_from_zero_forgets_the_work() -> None:
    scheduler, _ = running()
    steps(scheduler, 64, Work(Unit.STEPS, 1, 1000))
    scheduler.handle(ev.TrainingRestarted(9.0, A, FIRST, 0))
    assert scheduler.state.records[A].work is None


def test_a_card_shows_the_work_in_the_unit_of_the_job() -> None:
    scheduler, _ = running(epochs=7, stop=StopRule(max_steps=800))
    record = scheduler.state.records[A]
    card = card_of(record, WorkerPlaces.of(record, None), None, elastic=True)
    assert card.work == Work(Unit.EPOCHS, 0, 7)
    steps(scheduler, 64, Work(Unit.STEPS, 1, 1000), None)
    card = card_of(record, WorkerPlaces.of(record, None), None, elastic=True)
    assert card.work == Work(Unit.STEPS, 1, 800)  # as far as its rule lets it
    scheduler.handle(ev.JobEnded(9.0, A, EndReason.FINISHED))
    ended = card_of_ended(scheduler.state.ended[A], None, card, elastic=True)
    assert ended.work == Work(Unit.STEPS, 1, 800)


def test_the_order_to_end_is_one() -> None:
    scheduler, _ = running(stop=StopRule(max_samples=64))
    ends = [plan for n in (64, 65, 66) if (plan := steps(scheduler, n)) is not None]
    found = [a for plan in ends for a in getattr(plan, "actions", ()) if isinstance(a, Finish)]
    assert len(found) == 1
