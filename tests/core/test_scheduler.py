"""Events in, plans out: small stories with a scripted engine."""

from __future__ import annotations

from typing import NoReturn

import pytest
from msgspec.structs import replace

from ones.core import (
    Allocation,
    Cluster,
    Configuration,
    Decision,
    EndReason,
    Event,
    Generation,
    Gpu,
    Job,
    JobId,
    NodeId,
    Phase,
    Plan,
    Schedule,
    Scheduler,
    ScriptedEngine,
    State,
    View,
    Worker,
    drive,
)
from ones.core import events as ev
from ones.core.plan import Finish, Prepare, Rescale, Start, Stop
from ones.core.transitions import apply
from ones.errors import BrokenEngineError, BrokenPolicyError, StaleViewError
from ones.policies import create
from ones.stopping import StopRule
from tests.core.test_strokes import Wish

A, B = JobId("a"), JobId("b")
N0 = NodeId("n0")
FIRST = Generation(1)


def gpu(index: int) -> Gpu:
    return Gpu(N0, index)


def job(name: JobId, at: float = 0.0, **fields: object) -> Job:
    return Job(id=name, submitted_at=at, **fields)  # type: ignore[arg-type]


def on(*indexes: int, batch: int = 32) -> Allocation:
    return Allocation(tuple(Worker(gpu(i), batch) for i in indexes))


def ready(scheduler: Scheduler, name: JobId, at: float) -> None:
    """Answer the job's start: its workers are there, and it says what it trains."""
    record = scheduler.state.records[name]
    assert record.in_flight is not None
    assert record.in_flight.allocation is not None
    generation = Generation(record.in_flight.plan)
    for place in record.in_flight.allocation.gpus:
        scheduler.handle(ev.WorkerReady(at, name, generation, place))
    scheduler.handle(
        ev.JobDescribed(
            at=at,
            job=name,
            generation=generation,
            dataset_size=1000,
            base_batch=32,
            max_local_batch=64,
        )
    )


class Asked(Wish):
    """Decides when a job comes, or when it is woken; the test says what."""

    decides_on = frozenset({ev.JobSubmitted, ev.Woke})

    def decide(self, view: View) -> Decision:
        return Decision(schedule=self.target)


def wishing(n_gpus: int = 4) -> tuple[Scheduler, Wish]:
    wish = Asked()
    return Scheduler(Cluster.of(n_gpus), wish), wish


def test_a_freed_gpu_goes_to_the_next_in_line_once_it_is_really_free() -> None:
    first, second = job(A, requested_gpus=2), job(B, requested_gpus=2)
    engine = ScriptedEngine(
        [
            ev.JobSubmitted(0.0, first),
            ev.JobSubmitted(1.0, second),
            ev.JobEnded(9.0, A, EndReason.FINISHED),
            ev.WorkerLeft(9.1, A, Generation(1), gpu(0)),
            ev.WorkerLeft(9.3, A, Generation(1), gpu(1)),
        ]
    )
    drive(Scheduler(Cluster.of(2), create("fifo")), engine, lambda entry: None)
    kinds = [[type(a) for a in plan.actions] for plan in engine.plans]
    assert kinds == [[Start], [Prepare], [Start]]
    assert engine.plans[-1].at == 9.3  # not at 9.0, when the job ended, but when both had left


def test_two_jobs_that_trade_a_gpu_do_it_in_two_steps() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule({A: on(0, 1, batch=16), B: Allocation.as_scripted([gpu(2), gpu(3)])})
    scheduler.handle(ev.JobSubmitted(2.0, job(B)))
    ready(scheduler, B, 3.0)
    wish.target = Schedule({A: on(0, 2, batch=16), B: on(1, 3, batch=16)})
    plan = scheduler.handle(ev.Woke(4.0))
    # stroke one: each goes on with its survivor, which takes over the whole batch in parts
    shrunk = {a.job: a.allocation for a in plan.actions if isinstance(a, Rescale)}
    assert shrunk[A].gpus == (gpu(0),)
    assert shrunk[A].batch == 32
    assert shrunk[A].micro_steps == 2
    assert {a.job: a.allocation for a in plan.actions if isinstance(a, Prepare)} == {
        A: on(0, 2, batch=16),
        B: on(1, 3, batch=16),
    }
    generation = Generation(plan.number)
    assert not scheduler.handle(ev.WorkerLeft(5.0, A, generation, gpu(1))).actions
    assert not scheduler.handle(ev.WorkerLeft(5.0, B, generation, gpu(2))).actions
    # stroke two: as soon as a job has switched and its new GPU is free
    second = scheduler.handle(ev.Rescaled(5.5, A, generation, 0.5))
    assert second.actions == (Rescale(A, on(0, 2, batch=16), 32),)
    assert second.number > plan.number


def test_a_job_that_keeps_no_gpu_goes_through_a_checkpoint() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule({A: on(3)})
    plan = scheduler.handle(ev.Woke(2.0))
    assert [type(a) for a in plan.actions] == [Prepare, Stop]
    back = scheduler.handle(ev.WorkerLeft(3.0, A, Generation(plan.number), gpu(0)))
    assert back.actions == (Start(A, on(3), 32),)


def test_a_single_switch_is_enough_when_no_job_waits_for_the_freed_gpus() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule({A: on(1, 2)})
    assert scheduler.handle(ev.Woke(2.0)).actions == (Rescale(A, on(1, 2), 32),)


def test_a_failed_rescale_restores_what_was_held_and_frees_what_was_promised() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    held = scheduler.state.records[A].held
    wish.target = Schedule({A: on(0), B: Allocation.as_scripted([gpu(1)])})
    plan = scheduler.handle(ev.JobSubmitted(2.0, job(B)))
    apply(scheduler.state, ev.RescaleFailed(3.0, A, Generation(plan.number), "no answer"))
    assert scheduler.state.schedule.get(A) == held
    assert scheduler.state.schedule.get(B) is None  # it cannot have what the other keeps
    assert B in scheduler.state.waiting


def test_workers_that_are_stopped_from_outside_while_a_job_grows_cost_no_try() -> None:
    """As after `ones down` without a controller, or a shutdown: no worker failed."""
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule({A: on(0, 1)})
    plan = scheduler.handle(ev.Woke(2.0))
    wish.target = Schedule({})
    scheduler.handle(ev.WorkerLeft(3.0, A, Generation(1), gpu(0)))
    scheduler.handle(ev.WorkerLeft(3.0, A, Generation(plan.number), gpu(1)))
    after = scheduler.handle(ev.RescaleFailed(3.0, A, Generation(plan.number), "stopped"))
    assert after.actions == ()
    assert A in scheduler.state.waiting
    assert scheduler.state.records[A].failures == 0


def test_workers_that_are_stopped_from_outside_while_a_job_starts_cost_no_try() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    wish.target = Schedule({})
    scheduler.handle(ev.WorkerLeft(1.0, A, Generation(1), gpu(1)))
    failed = ev.RescaleFailed(1.0, A, Generation(1), "stopped", harmless=True)
    assert scheduler.handle(failed).actions == (Stop(A),)  # half of it is of no use
    scheduler.handle(ev.WorkerLeft(2.0, A, Generation(1), gpu(0)))
    assert A in scheduler.state.waiting
    assert scheduler.state.records[A].failures == 0


def test_reports_of_an_old_generation_are_dropped_and_counted() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule({A: on(0, 1)})
    plan = scheduler.handle(ev.Woke(2.0))
    # until the switch the old generation is the one that trains
    assert apply(scheduler.state, epoch(2.5, A, 1, generation=Generation(1)))
    scheduler.handle(ev.Rescaled(3.0, A, Generation(plan.number), 0.4))
    assert not apply(scheduler.state, epoch(3.5, A, 2, generation=Generation(1)))
    assert not apply(scheduler.state, epoch(3.5, A, 2, generation=Generation(99)))
    assert scheduler.state.dropped == {"stale": 2}
    assert apply(scheduler.state, epoch(3.5, A, 2, generation=Generation(plan.number, 1)))


def test_a_late_worker_left_does_not_free_a_gpu_that_was_given_again() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule()
    stop = scheduler.handle(ev.Woke(2.0))
    scheduler.handle(ev.WorkerLeft(3.0, A, Generation(stop.number), gpu(0)))
    wish.target = Schedule({A: on(0)})
    start = scheduler.handle(ev.Woke(4.0))
    assert [type(a) for a in start.actions] == [Start]
    scheduler.handle(ev.WorkerLeft(5.0, A, Generation(stop.number), gpu(0)))
    assert scheduler.state.dropped == {"stale": 1}
    assert gpu(0) in scheduler.state.occupants


def test_reports_of_an_ended_job_are_dropped() -> None:
    scheduler, _ = wishing()
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    scheduler.handle(ev.JobEnded(1.0, A, EndReason.FAILED, "bad script"))
    scheduler.handle(epoch(2.0, A, 1))
    scheduler.handle(ev.JobEnded(2.0, A, EndReason.FINISHED))
    scheduler.handle(ev.CancelRequested(2.0, JobId("nobody")))
    assert scheduler.state.dropped == {"ended": 2, "unknown": 1}
    assert scheduler.state.ended[A].reason is EndReason.FAILED


def test_a_stop_rule_ends_the_job_and_its_gpus_are_free_in_the_same_breath() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    rule = StopRule(target_accuracy=0.9, target_epochs=2)
    scheduler.handle(ev.JobSubmitted(0.0, job(A, stop=rule)))
    scheduler.handle(ev.JobSubmitted(0.0, job(B)))
    ready(scheduler, A, 1.0)
    for number, accuracy in enumerate((0.95, 0.8, 0.91), 1):
        assert not scheduler.handle(epoch(float(number), A, number, accuracy=accuracy)).actions
    plan = scheduler.handle(epoch(4.0, A, 4, accuracy=0.92))
    assert plan.actions == (Finish(A, EndReason.CONVERGED, "target"),)
    promised = scheduler.handle(ev.JobEnded(4.0, A, EndReason.CONVERGED))
    assert [type(a) for a in promised.actions] == [Prepare]  # b, as soon as a has left
    assert scheduler.state.ended[A].reason is EndReason.CONVERGED


def test_cancelling_works_in_every_phase() -> None:
    for answered in (False, True):
        scheduler, wish = wishing()
        wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
        scheduler.handle(ev.JobSubmitted(0.0, job(A)))
        if answered:
            ready(scheduler, A, 1.0)
        wish.target = Schedule()
        plan = scheduler.handle(ev.CancelRequested(2.0, A, "her"))
        assert plan.actions == (Finish(A, EndReason.CANCELLED, "Cancelled by her"),)
        assert scheduler.state.records[A].phase is Phase.ENDING
        scheduler.handle(ev.JobEnded(3.0, A, EndReason.FINISHED))
        assert scheduler.state.ended[A].reason is EndReason.CANCELLED


def test_a_worker_that_dies_costs_its_job_no_more_than_itself() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    scheduler.handle(ev.WorkerLost(2.0, A, Generation(1), gpu(1), "killed"))
    record = scheduler.state.records[A]
    assert record.held is not None
    assert record.held.gpus == (gpu(0),)
    assert not record.settled
    scheduler.handle(ev.Rescaled(2.5, A, Generation(1, 1), 0.5))
    assert record.settled
    assert (record.failures, record.losses) == (0, 1)


def test_a_job_that_regrouped_before_the_loss_event_need_not_do_so_again() -> None:
    """A node is lost when nothing can run there any more: its jobs know of it long before."""
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1), gpu(2)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    record = scheduler.state.records[A]
    scheduler.handle(ev.Rescaled(2.0, A, Generation(1, 1), 0.5, (gpu(0), gpu(2))))
    scheduler.handle(ev.WorkerLost(9.0, A, Generation(1, 1), gpu(1), "its node is gone"))
    assert record.settled
    assert record.held is not None
    assert record.held.gpus == (gpu(0), gpu(2))
    scheduler.handle(ev.WorkerLost(10.0, A, Generation(1, 1), gpu(2), "killed"))
    assert not record.settled, "this one was among them"
    scheduler.handle(ev.Rescaled(10.5, A, Generation(1, 2), 0.5, (gpu(0),)))
    assert record.settled


def test_a_job_without_surviving_workers_is_retried_up_to_its_limit() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    scheduler.handle(ev.JobSubmitted(0.0, job(A, retries=1)))
    ready(scheduler, A, 1.0)
    again = scheduler.handle(ev.WorkerLost(2.0, A, Generation(1), gpu(0), "killed"))
    assert [type(a) for a in again.actions] == [Start]
    ready(scheduler, A, 3.0)
    final = scheduler.handle(ev.WorkerLost(4.0, A, Generation(again.number), gpu(0), "killed"))
    (finish,) = final.actions
    assert isinstance(finish, Finish)
    assert finish.reason is EndReason.FAILED
    assert finish.message == (
        "Its last worker died: killed. Try 2 of 2: no tries are left. Its output: ones logs a"
    )


def test_a_node_that_goes_down_is_not_the_job_s_fault() -> None:
    scheduler = Scheduler(Cluster.of(2, 1), create("fifo"))
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    plan = scheduler.handle(ev.NodeDown(2.0, N0))
    (start,) = plan.actions
    assert isinstance(start, Start)
    assert start.allocation.gpus == (Gpu(NodeId("n1"), 0),)
    assert scheduler.state.records[A].failures == 0


def speed(batch: int, seconds: float = 0.2) -> ev.ThroughputMeasured:
    return ev.ThroughputMeasured(
        at=2.0,
        job=A,
        generation=Generation(1),
        configuration=Configuration(1, 1, batch),
        step_seconds=seconds,
        steps=10,
    )


def test_a_slow_first_step_with_new_workers_is_part_of_the_cost_of_a_change() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    scheduler.handle(replace(speed(8), first_step_extra_seconds=4.0))  # no change was made yet
    assert scheduler.state.view().job(A).switch_cost.rescale_seconds == 1.0
    record = scheduler.state.records[A]
    record.moves, record.moved_seconds = 1, 2.0
    scheduler.handle(replace(speed(8), first_step_extra_seconds=4.0))
    assert scheduler.state.view().job(A).switch_cost.rescale_seconds == pytest.approx(3.5)


def test_no_more_than_64_configurations_are_kept_and_the_oldest_goes() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    for batch in range(1, 65):
        scheduler.handle(speed(batch))
    scheduler.handle(speed(1))  # measured again: the oldest is that of batch 2 now
    kept = scheduler.state.view().job(A).profile
    scheduler.handle(speed(1000))
    profile = scheduler.state.view().job(A).profile
    assert [c.batch for c in profile] == [*range(3, 65), 1, 1000]
    assert profile[Configuration(1, 1, 1)].steps == 20
    assert [c.batch for c in kept] == [*range(2, 65), 1], "a view that was kept does not change"


def test_a_diverged_epoch_counts_as_one_without_improvement() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A, stop=StopRule(patience=2))))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    for epoch in (1, 2):
        scheduler.handle(
            ev.EpochFinished(
                at=2.0 + epoch,
                job=A,
                generation=Generation(1),
                epoch=epoch,
                samples=10,
                steps=1,
                not_finite=("loss",),
            )
        )
    assert scheduler.state.records[A].phase is Phase.ENDING
    assert scheduler.state.records[A].loss is None


def test_throughput_memory_and_noise_reach_the_view() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    configuration = Configuration(1, 1, 32)
    for seconds in (0.2, 0.4):
        scheduler.handle(
            ev.ThroughputMeasured(
                at=2.0,
                job=A,
                generation=Generation(1),
                configuration=configuration,
                step_seconds=seconds,
                steps=10,
            )
        )
    scheduler.handle(
        ev.MemoryLimitLearned(at=2.0, job=A, generation=Generation(1), max_local_batch=48)
    )
    scheduler.handle(
        ev.StepsDone(
            at=2.0, job=A, generation=Generation(1), epoch=1, steps=5, samples=160,
            gradient_noise=700.0,
        )
    )  # fmt: skip
    shown = scheduler.state.view().job(A)
    assert shown.profile[configuration].seconds == pytest.approx(0.3)
    assert shown.local_limit == 48
    assert shown.progress.samples == 160
    assert shown.progress.gradient_noise == 700.0
    assert shown.epochs == pytest.approx(0.16)
    assert shown.switch_cost.rescale_seconds == 1.0


def test_until_a_memory_limit_is_known_a_part_grows_to_twice_what_has_worked() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    generation = Generation(1)
    scheduler.handle(ev.WorkerReady(1.0, A, generation, gpu(0)))
    scheduler.handle(
        ev.JobDescribed(at=1.0, job=A, generation=generation, dataset_size=1000, base_batch=32)
    )
    scheduler.handle(epoch(2.0, A, 1))
    wish.target = Schedule({A: on(0, batch=65)})
    with pytest.raises(BrokenPolicyError, match="65 samples on one GPU at once, limit 64"):
        scheduler.handle(ev.Woke(3.0))


def grown_after_five_seconds() -> tuple[Scheduler, Wish]:
    """With a job that has stood still for so long to get a second GPU."""
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule({A: on(0, 1)})
    plan = scheduler.handle(ev.Woke(2.0))
    scheduler.handle(ev.Rescaled(3.0, A, Generation(plan.number), 5.0))
    return scheduler, wish


def test_measured_pauses_update_what_a_switch_is_expected_to_cost() -> None:
    scheduler, _ = grown_after_five_seconds()
    assert scheduler.state.view().job(A).switch_cost.rescale_seconds == pytest.approx(3.0)


def test_what_another_batch_alone_costs_says_nothing_of_other_gpus() -> None:
    scheduler, wish = grown_after_five_seconds()
    for at, batch in ((4.0, 16), (6.0, 24)):
        wish.target = Schedule({A: on(0, 1, batch=batch)})
        plan = scheduler.handle(ev.Woke(at))
        scheduler.handle(ev.Rescaled(at + 1, A, Generation(plan.number), 0.0))
    shown = scheduler.state.view().job(A)
    assert shown.held == on(0, 1, batch=24)
    assert shown.rescales == 3
    assert shown.switch_cost.rescale_seconds == pytest.approx(3.0)


def test_a_view_that_is_kept_beyond_its_event_raises() -> None:
    scheduler, _ = wishing()
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    view = scheduler.state.view()
    jobs, waiting = view.jobs, view.waiting
    kept = view.job(A)  # a value: it may be kept
    scheduler.handle(ev.Woke(1.0))
    for use in (
        lambda: view.schedule,
        lambda: view.free,
        lambda: list(jobs),
        lambda: list(waiting),
        lambda: view.room(""),
    ):
        with pytest.raises(StaleViewError):
            use()
    assert kept.job.id == A


def test_time_that_goes_back_is_the_engine_s_bug() -> None:
    scheduler, _ = wishing()
    scheduler.handle(ev.Woke(5.0))
    with pytest.raises(BrokenEngineError, match=r"Woke at 4.0 s came after an event at 5.0 s"):
        scheduler.handle(ev.Woke(4.0))


@pytest.mark.parametrize("method", ["observe", "decide"])
def test_what_a_policy_raises_is_told_as_its_own(method: str) -> None:
    def slip(*given: object) -> NoReturn:
        raise KeyError("a")

    broken = Wish()
    setattr(broken, method, slip)
    scheduler = Scheduler(Cluster.of(1), broken)
    told = rf"`{method}` raised KeyError: 'a' \(test_scheduler\.py:\d+\)"
    with pytest.raises(BrokenPolicyError, match=told):
        scheduler.handle(ev.JobSubmitted(0.0, job(A)))


def test_a_policy_is_woken_when_it_asked_for_it() -> None:
    class Alarm(Wish):
        def decide(self, view: View) -> Decision:
            return Decision(schedule=view.schedule, wake_at=view.now + 10.0)

    seen: list[Event | Plan] = []
    engine = ScriptedEngine([ev.JobSubmitted(0.0, job(A)), ev.JobSubmitted(25.0, job(B))])
    drive(Scheduler(Cluster.of(1), Alarm()), engine, seen.append)
    assert [e.at for e in seen if isinstance(e, ev.Woke)] == [10.0, 20.0]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (Schedule({JobId("x"): on(0)}), "x got GPUs and is not an unfinished job"),
        (Schedule({A: on(7, batch=64)}), "a got GPU n0/7, which does not exist"),
        (Schedule({A: on(0, batch=16)}), "before it has joined; requested: 64"),
        (Schedule({A: on(0, 1, 2)}), r"a got 3 GPUs, not in 1\.\.2"),
        (
            Schedule({A: Allocation.as_scripted([gpu(0)]), B: Allocation.as_scripted([gpu(0)])}),
            "GPU n0/0 was given to job b and to job a",
        ),
        (Schedule({A: Allocation((Worker(gpu(0), 64, 0),))}), "micro_steps is not at least 1"),
    ],
)
def test_a_decision_that_no_engine_could_carry_out_is_refused(
    target: Schedule, complaint: str
) -> None:
    scheduler, wish = wishing()
    scheduler.handle(ev.JobSubmitted(0.0, job(A, requested_batch=64, max_gpus=2)))
    scheduler.handle(ev.JobSubmitted(0.0, job(B)))
    wish.target = target
    with pytest.raises(BrokenPolicyError, match=complaint):
        scheduler.handle(ev.Woke(1.0))


def test_a_pinned_job_must_be_left_alone() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    wish.target = Schedule()
    with pytest.raises(BrokenPolicyError, match="a is pinned and its allocation was changed"):
        scheduler.handle(ev.Woke(1.0))


def test_a_draining_node_keeps_its_workers_and_gets_no_new_ones() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    scheduler.handle(ev.NodeDraining(2.0, N0))
    assert len(scheduler.state.free) == 0
    wish.target = Schedule({A: on(0, 1)})
    with pytest.raises(BrokenPolicyError, match="which is draining"):
        scheduler.handle(ev.Woke(3.0))


def test_a_gpu_that_was_set_aside_keeps_its_worker_and_gets_no_new_one() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    for index in (0, 1):
        scheduler.handle(ev.GpuSetAside(2.0, gpu(index), "it fails"))
    scheduler.handle(ev.GpuSetAside(2.0, gpu(1), "it fails"))
    assert scheduler.state.dropped["duplicate"] == 1
    assert gpu(1) not in scheduler.state.free
    assert gpu(2) in scheduler.state.free, "the others of its node are not meant"
    assert scheduler.state.schedule[A].gpus == (gpu(0),), "a running job may stay"
    wish.target = Schedule({A: on(0, 1)})
    with pytest.raises(BrokenPolicyError, match=f"{gpu(1)}, which is draining"):
        scheduler.handle(ev.Woke(3.0))
    wish.target = scheduler.state.schedule
    scheduler.handle(ev.NodeDraining(4.0, N0))
    scheduler.handle(ev.NodeUp(5.0, N0, scheduler.state.cluster.nodes[N0].gpus))
    assert gpu(1) not in scheduler.state.free, (
        "a node that may be used again says nothing of its GPUs"
    )
    scheduler.handle(ev.GpuReturned(6.0, gpu(1)))
    assert gpu(1) in scheduler.state.free
    scheduler.handle(ev.GpuReturned(6.0, gpu(1)))
    assert scheduler.state.dropped["unknown"] == 1


def test_a_job_that_never_joined_is_left_alone_from_then_on() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    wish.target = scheduler.state.schedule
    scheduler.handle(ev.JobFoundFixed(300.0, A, FIRST))
    scheduler.handle(ev.WorkerReady(300.0, A, FIRST, gpu(0)))
    assert scheduler.state.view().job(A).pinned
    assert not scheduler.state.view().job(A).job.elastic
    wish.target = Schedule({A: on(0, 1)})
    with pytest.raises(BrokenPolicyError, match="a is pinned and its allocation was changed"):
        scheduler.handle(ev.Woke(301.0))
    wish.target = scheduler.state.schedule
    scheduler.handle(
        ev.JobDescribed(at=302.0, job=A, generation=FIRST, dataset_size=100, base_batch=8)
    )
    assert scheduler.state.view().job(A).job.elastic, "it was only slow"


def epoch(
    at: float,
    name: JobId,
    number: int,
    *,
    accuracy: float | None = None,
    generation: Generation = FIRST,
) -> ev.EpochFinished:
    return ev.EpochFinished(
        at=at,
        job=name,
        generation=generation,
        epoch=number,
        samples=1000,
        steps=32,
        accuracy=accuracy,
    )


def test_a_job_that_begins_again_has_no_progress_and_counts_its_epochs_anew() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    for number in (1, 2):
        scheduler.handle(epoch(1.0 + number, A, number, accuracy=0.9))
    assert scheduler.handle(ev.TrainingRestarted(4.0, A, FIRST, 2)) is not None
    record = scheduler.state.records[A]
    assert (record.epochs, record.samples, record.steps, record.accuracy) == (0, 0, 0, None)
    scheduler.handle(epoch(5.0, A, 1, accuracy=0.4))
    record = scheduler.state.records[A]
    assert (record.epochs, record.samples, record.accuracy) == (1, 1000, 0.4)


def test_a_loss_that_is_not_finite_is_remembered_until_it_is_again() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = scheduler.state.schedule
    losses: list[float | None] = [0.5, None, None, 0.4]
    found = []
    for number, loss in enumerate(losses, 1):
        missing = () if loss else ("loss",)
        report = replace(epoch(1.0 + number, A, number), loss=loss, not_finite=missing)
        scheduler.handle(report)
        record = scheduler.state.records[A]
        found.append((record.loss, record.diverged_epoch))
    assert found == [(0.5, 0), (None, 2), (None, 2), (0.4, 0)]


@pytest.mark.parametrize(
    ("least", "most", "first"), [(None, None, 32), (64, None, 64), (None, 16, 16), (8, 48, 32)]
)
def test_the_first_batch_is_the_script_s_own_within_the_user_s_bounds(
    least: int | None, most: int | None, first: int
) -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0)])})
    bounded = replace(job(A), min_batch=least, max_batch=most)
    scheduler.handle(ev.JobSubmitted(0.0, bounded))
    wish.target = scheduler.state.schedule
    scheduler.handle(
        ev.JobDescribed(at=1.0, job=A, generation=FIRST, dataset_size=100, base_batch=32)
    )
    assert scheduler.state.schedule[A].batch == first


def test_a_restored_scheduler_decides_at_once_and_completes_what_a_crash_left() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    scheduler.recall(ev.JobSubmitted(0.0, job(A)))
    scheduler.recall(ev.CancelRequested(1.0, A, "her"))  # and then the power failed
    engine = ScriptedEngine([ev.Woke(2.0)])
    drive(scheduler, engine, lambda entry: None)
    assert [type(a) for plan in engine.plans for a in plan.actions] == [Finish]
    again = Scheduler(
        Cluster.of(1), create("fifo"), state=State.restored(scheduler.state.snapshot())
    )
    assert again.wake_at == scheduler.state.now


def test_too_few_survivors_go_back_to_the_queue() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A, min_gpus=2)))
    ready(scheduler, A, 1.0)
    plan = scheduler.handle(ev.WorkerLost(2.0, A, Generation(1), gpu(1), "killed"))
    assert [type(a) for a in plan.actions] == [Stop]
    wish.target = Schedule()
    scheduler.handle(ev.WorkerLeft(3.0, A, Generation(plan.number), gpu(0)))
    assert A in scheduler.state.waiting
    assert scheduler.state.records[A].failures == 0


def test_the_interim_of_a_move_keeps_to_a_limit_learned_meanwhile() -> None:
    scheduler, wish = wishing()
    wish.target = Schedule({A: Allocation.as_scripted([gpu(0), gpu(1)])})
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    ready(scheduler, A, 1.0)
    wish.target = Schedule({A: on(0, 1, batch=64)})
    plan = scheduler.handle(ev.Woke(2.0))
    scheduler.handle(ev.Rescaled(3.0, A, Generation(plan.number), 0.1))
    scheduler.handle(
        ev.MemoryLimitLearned(at=4.0, job=A, generation=Generation(plan.number), max_local_batch=32)
    )
    wish.target = scheduler.state.schedule
    scheduler.handle(ev.JobSubmitted(4.0, job(B)))
    wish.target = Schedule({A: on(0, 2), B: Allocation.as_scripted([gpu(1)])})
    first = next(a for a in scheduler.handle(ev.Woke(5.0)).actions if isinstance(a, Rescale))
    assert first.allocation.largest_part <= 32


def test_a_start_that_fails_says_why() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    scheduler.handle(ev.JobSubmitted(0.0, job(A)))
    scheduler.handle(ev.WorkerLeft(1.0, A, Generation(1), gpu(0)))
    plan = scheduler.handle(ev.RescaleFailed(1.0, A, Generation(1), "port in use"))
    (finish,) = plan.actions
    assert isinstance(finish, Finish)
    assert finish.message == (
        "Its start failed: port in use. Try 1 of 1: submit it with --retries to allow more."
        " Its output: ones logs a"
    )


def test_every_event_has_its_handler() -> None:
    """A new event is found here, and not when it happens for the first time."""
    from typing import get_args

    from ones.core.transitions import _HANDLERS

    assert set(_HANDLERS) == set(get_args(Event))


def test_a_worker_that_leaves_in_order_is_no_loss() -> None:
    """As when the service is stopped: it has saved its work."""
    for event, losses in ((ev.WorkerLeft, 0), (ev.WorkerLost, 1)):
        scheduler = Scheduler(Cluster.of(1), create("fifo"))
        scheduler.handle(ev.JobSubmitted(0.0, job(A, requested_batch=32, retries=1)))
        ready(scheduler, A, 1.0)
        record = scheduler.state.records[A]
        scheduler.handle(event(2.0, A, FIRST, gpu(0)))
        assert record.losses == losses
        assert record.phase is not Phase.RUNNING
