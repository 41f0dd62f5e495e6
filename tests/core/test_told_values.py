"""Values that an engine reports late, again or otherwise than ordered: batch, bounds, progress."""

from __future__ import annotations

import pytest

from ones.core import (
    Allocation,
    Cluster,
    Generation,
    Gpu,
    Job,
    JobId,
    NodeId,
    Phase,
    Schedule,
    Scheduler,
    Worker,
)
from ones.core import events as ev
from ones.core.plan import Plan, Rescale
from ones.errors import BrokenEngineError, InvalidJobError
from ones.testing.invariants import check_invariants
from tests.core.test_strokes import Wish

A = JobId("a")
GPUS = tuple(Gpu(NodeId("n0"), i) for i in range(4))
FIRST = Generation(1)


class Asked(Wish):
    decides_on = frozenset({ev.JobSubmitted, ev.Woke})


def started(allocation: Allocation, **fields: object) -> tuple[Scheduler, Asked]:
    wish = Asked()
    wish.target = Schedule({A: allocation})
    scheduler = Scheduler(Cluster.of(4), wish)
    scheduler.handle(ev.JobSubmitted(0.0, Job(id=A, submitted_at=0.0, **fields)))  # type: ignore[arg-type]
    return scheduler, wish


def running(*, limit: int | None = 256, **fields: object) -> tuple[Scheduler, Asked]:
    """A job that trains with its own batch of 64 on the first GPU."""
    scheduler, wish = started(Allocation.as_scripted(GPUS[:1]), **fields)
    scheduler.handle(ev.WorkerReady(1.0, A, FIRST, GPUS[0]))
    describe(scheduler, limit)
    return scheduler, wish


def describe(scheduler: Scheduler, limit: int | None, base: int = 64, **bounds: int) -> None:
    scheduler.handle(
        ev.JobDescribed(
            at=scheduler.state.now, job=A, generation=FIRST, dataset_size=1000, base_batch=base,
            max_local_batch=limit, **bounds,  # type: ignore[arg-type]
        )
    )  # fmt: skip


def order(scheduler: Scheduler, wish: Asked, at: float, allocation: Allocation) -> Plan:
    wish.target = Schedule({A: allocation})
    return scheduler.handle(ev.Woke(at))


def held(scheduler: Scheduler) -> Allocation:
    check_invariants(scheduler.state)
    view = scheduler.state.view().job(A)
    assert view.held is not None
    return view.held


# another batch than ordered


def test_a_rescale_to_another_batch_than_ordered_is_what_policies_see() -> None:
    scheduler, wish = running()
    plan = order(scheduler, wish, 2.0, Allocation.even(GPUS[:2], 512))
    generation = Generation(plan.number)
    scheduler.handle(ev.WorkerReady(3.0, A, generation, GPUS[1]), decide=False)
    answer = scheduler.handle(ev.Rescaled(3.0, A, generation, 0.5, batch=500), decide=False)
    assert answer.actions == (), "the order is done"
    assert held(scheduler) == Allocation.even(GPUS[:2], 500)
    view = scheduler.state.view()
    assert view.job(A).wanted == view.job(A).held == view.schedule[A]
    assert view.job(A).phase is Phase.RUNNING
    assert not view.job(A).pinned
    assert order(scheduler, wish, 4.0, view.schedule[A]).actions == ()


def test_a_start_with_another_batch_than_ordered() -> None:
    """Any of its workers may say so, before or after the script has described itself."""
    for batches in ((30, None), (None, 30), (30, 30)):
        scheduler, _ = started(Allocation.even(GPUS[:2], 32), requested_batch=32)
        scheduler.handle(ev.WorkerReady(1.0, A, FIRST, GPUS[0], batches[0]))
        describe(scheduler, 256, base=32)
        scheduler.handle(ev.WorkerReady(1.0, A, FIRST, GPUS[1], batches[1]))
        assert held(scheduler) == scheduler.state.schedule[A] == Allocation.even(GPUS[:2], 30)
        assert scheduler.state.records[A].phase is Phase.RUNNING


def test_accumulation_stays_as_ordered() -> None:
    scheduler, wish = running(limit=64)
    ordered = Allocation.even(GPUS[:1], 128, 64)
    plan = order(scheduler, wish, 2.0, ordered)
    scheduler.handle(ev.Rescaled(3.0, A, Generation(plan.number), 0.5, batch=120))
    assert held(scheduler) == Allocation((Worker(GPUS[0], 120, 2),))


def test_after_the_first_of_two_steps_the_second_follows_with_its_own_batch() -> None:
    scheduler, wish = running()
    two = Allocation.even(GPUS[:2], 64)
    plan = order(scheduler, wish, 2.0, two)
    generation = Generation(plan.number)
    scheduler.handle(ev.Rescaled(3.0, A, generation, 0.5))
    other = JobId("b")
    scheduler.handle(ev.JobSubmitted(3.0, Job(id=other, submitted_at=3.0)), decide=False)
    # it swaps its second GPU for the third, and the other job gets the second
    target = Allocation.even((GPUS[0], GPUS[2]), 64)
    wish.target = Schedule({A: target, other: Allocation.as_scripted(GPUS[1:2])})
    plan = scheduler.handle(ev.Woke(4.0))
    generation = Generation(plan.number)
    (first,) = (a for a in plan.actions if isinstance(a, Rescale))
    assert first.allocation.gpus == GPUS[:1]
    second = scheduler.handle(ev.Rescaled(5.0, A, generation, 0.5, batch=50), decide=False)
    assert held(scheduler).batch == 50
    assert second.actions == (Rescale(A, target, 64),)


def test_workers_that_re_form_may_have_another_batch() -> None:
    scheduler, wish = running()
    plan = order(scheduler, wish, 2.0, Allocation.even(GPUS[:2], 64))
    generation = Generation(plan.number)
    scheduler.handle(ev.WorkerReady(3.0, A, generation, GPUS[1]))
    scheduler.handle(ev.Rescaled(3.0, A, generation, 0.5))
    scheduler.handle(ev.WorkerLost(4.0, A, generation, GPUS[1]), decide=False)
    assert held(scheduler).batch == 32
    again = Generation(plan.number, 1)
    scheduler.handle(ev.Rescaled(4.5, A, again, 0.5, GPUS[:1], batch=64), decide=False)
    assert held(scheduler) == scheduler.state.schedule[A] == Allocation.even(GPUS[:1], 64)


def test_a_batch_that_leaves_a_worker_without_samples_is_refused() -> None:
    scheduler, wish = running()
    plan = order(scheduler, wish, 2.0, Allocation.even(GPUS, 64))
    answer = ev.Rescaled(3.0, A, Generation(plan.number), 0.5, batch=3)
    with pytest.raises(BrokenEngineError, match="job a: batch 3 is too small for 4 workers"):
        scheduler.handle(answer)


# memory and bounds


def test_memory_may_become_known_and_change() -> None:
    scheduler, _ = running(limit=None)
    assert scheduler.state.view().job(A).local_limit == 64
    limits = [(describe, 128), (describe, 96), (None, 48), (describe, 96), (describe, 200)]
    expected = [128, 96, 48, 48, 200]  # a script that repeats itself does not undo what is learned
    for (tell, limit), seen in zip(limits, expected, strict=True):
        if tell is None:
            scheduler.handle(
                ev.MemoryLimitLearned(at=1.0, job=A, generation=FIRST, max_local_batch=limit)
            )
        else:
            tell(scheduler, limit)
        assert scheduler.state.view().job(A).local_limit == seen


def test_bounds_of_the_batch_may_be_told_and_changed() -> None:
    scheduler, _ = running(max_batch=512)
    describe(scheduler, 256, min_batch=32)
    job = scheduler.state.view().job(A).job
    assert (job.min_batch, job.max_batch) == (32, 512)
    describe(scheduler, 256)
    assert scheduler.state.view().job(A).job == job, "as before"
    describe(scheduler, 256, min_batch=1, max_batch=1024)
    job = scheduler.state.view().job(A).job
    assert (job.min_batch, job.max_batch) == (1, 1024)
    with pytest.raises(InvalidJobError, match="max_batch 1024 is less than min_batch 2048"):
        describe(scheduler, 256, min_batch=2048)


def test_a_description_may_change() -> None:
    """A stream of data, or another learning rate."""
    scheduler, _ = running()
    describe(scheduler, 256, base=128)
    view = scheduler.state.view().job(A)
    assert view.base_batch == 128
    assert view.held == Allocation.even(GPUS[:1], 64), "it trains with what it has"


# progress


def test_effective_samples_are_those_of_the_last_report() -> None:
    scheduler, _ = running()
    steps = {"at": 2.0, "job": A, "generation": FIRST, "epoch": 1, "steps": 5}

    def told() -> float | None:
        return scheduler.state.view().job(A).progress.effective_samples

    assert told() is None
    scheduler.handle(ev.StepsDone(samples=320, effective_samples=200.0, **steps))  # type: ignore[arg-type]
    assert told() == 200.0
    scheduler.handle(ev.StepsDone(samples=300, effective_samples=190.0, **steps))  # type: ignore[arg-type]
    assert told() == 200.0, "the report is older"
    scheduler.handle(ev.EpochFinished(samples=1000, effective_samples=700.0, **steps))  # type: ignore[arg-type]
    assert told() == 700.0
    steps |= {"epoch": 2}
    scheduler.handle(ev.StepsDone(samples=64, **steps))  # type: ignore[arg-type]
    assert told() is None
