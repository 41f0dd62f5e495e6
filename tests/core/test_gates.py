"""Changes of users after submission: hold, release, other sizes; dependencies and arrays."""

from __future__ import annotations

import msgspec

from ones.core import (
    Cluster,
    Dependency,
    EndReason,
    Generation,
    Job,
    JobId,
    Plan,
    PlanAdopted,
    Scheduler,
    State,
    View,
)
from ones.core import events as ev
from ones.core.plan import Finish, Rescale, Start, Stop
from ones.policies import create
from ones.policies.fifo import Fifo
from ones.runlog.encoding import decode_snapshot, encode_saved
from ones.testing.invariants import check_invariants

A, B, C = JobId("a"), JobId("b"), JobId("c")


class Shop:
    """A scheduler with policy fifo; the test plays the engine."""

    def __init__(self, gpus: int = 4) -> None:
        self.scheduler = Scheduler(Cluster.of(gpus), create("fifo"))

    @property
    def state(self) -> State:
        return self.scheduler.state

    def tell(self, event: ev.Event) -> Plan:
        plan = self.scheduler.handle(event)
        check_invariants(self.state)
        return plan

    def submit(self, job: JobId, **more: object) -> Plan:
        given = {"requested_batch": 64, **more}
        now = self.state.now
        return self.tell(ev.JobSubmitted(now, Job(id=job, submitted_at=now, **given)))  # type: ignore[arg-type]

    def run(self, job: JobId, **more: object) -> None:
        plan = self.submit(job, **more)
        (start,) = plan.actions
        assert isinstance(start, Start)
        for gpu in start.allocation.gpus:
            self.tell(ev.WorkerReady(self.state.now, job, Generation(plan.number), gpu))

    def leave(self, job: JobId) -> None:
        """All workers of a job leave."""
        late = Generation(10**6)
        for gpu in [gpu for gpu, there in self.state.occupants.items() if there.job == job]:
            self.tell(ev.WorkerLeft(self.state.now, job, late, gpu))

    def end(self, job: JobId, reason: EndReason = EndReason.FINISHED) -> list[str]:
        """End a job; returns the actions for others."""
        plan = self.tell(ev.JobEnded(self.state.now, job, reason))
        self.leave(job)
        return kinds(plan)


def kinds(plan: Plan) -> list[str]:
    return [f"{type(action).__name__} {action.job}" for action in plan.actions]


def test_a_held_job_is_not_started_until_it_is_released() -> None:
    shop = Shop(1)
    shop.run(A)
    shop.submit(B)
    shop.tell(ev.JobHeld(1.0, B, "ann"))
    shop.submit(C)
    shop.end(A)
    assert C in shop.state.schedule
    assert B not in shop.state.schedule
    assert shop.state.records[B].held_by == "ann"
    assert shop.tell(ev.JobHeld(3.0, B, "ann")).says_nothing
    assert shop.state.dropped["duplicate"] == 1
    shop.end(C)
    assert kinds(shop.tell(ev.JobReleased(4.0, B, "ann"))) == ["Start b"]


def test_a_running_job_that_is_held_saves_its_work_and_waits() -> None:
    shop = Shop(2)
    shop.run(A, requested_gpus=2)
    plan = shop.tell(ev.JobHeld(1.0, A, "ann"))
    assert kinds(plan) == ["Stop a"]
    assert isinstance(plan.actions[0], Stop)
    shop.leave(A)
    record = shop.state.records[A]
    assert (record.preemptions, A in shop.state.blocked, len(shop.state.waiting)) == (1, True, 0)
    assert kinds(shop.tell(ev.JobReleased(3.0, A, "ann"))) == ["Start a"]


def test_a_job_that_is_held_while_it_starts_is_stopped_once_it_runs() -> None:
    shop = Shop(1)
    start = shop.submit(A)
    assert shop.tell(ev.JobHeld(0.5, A, "ann")).says_nothing
    (gpu,) = shop.state.records[A].occupied
    assert kinds(shop.tell(ev.WorkerReady(1.0, A, Generation(start.number), gpu))) == ["Stop a"]


def test_a_fixed_size_job_keeps_its_gpus_until_it_waits_again() -> None:
    shop = Shop(1)
    shop.run(A, elastic=False, max_gpus=1)
    assert shop.tell(ev.JobHeld(1.0, A, "ann")).says_nothing
    assert A in shop.state.schedule


def test_other_sizes_are_enforced_for_a_running_job() -> None:
    shop = Shop(4)
    shop.run(A, requested_gpus=4)
    plan = shop.tell(ev.JobChanged(at=1.0, job=A, max_gpus=3))
    (action,) = plan.actions
    assert isinstance(action, Rescale)
    assert action.allocation.n_gpus == 3
    shop.tell(ev.Rescaled(2.0, A, Generation(plan.number), 0.1))
    # more GPUs than it has: it stops and waits for them
    plan = shop.tell(ev.JobChanged(at=2.0, job=A, min_gpus=4, max_gpus=0, priority=3.0))
    assert kinds(plan) == ["Stop a"]
    assert shop.state.records[A].priority == 3.0
    assert shop.state.records[A].job.max_gpus is None


def test_a_smaller_size_keeps_the_batch_within_its_limits() -> None:
    for least, batch in ((None, 48), (40, 48), (64, 64)):
        shop = Shop(4)
        shop.run(A, requested_gpus=4, min_batch=least)
        (action,) = shop.tell(ev.JobChanged(at=1.0, job=A, max_gpus=3)).actions
        assert isinstance(action, Rescale)
        assert action.allocation.n_gpus == 3
        assert action.allocation.batch == batch


def test_sizes_that_contradict_one_another_are_not_applied() -> None:
    shop = Shop(4)
    shop.submit(A, max_gpus=2)
    shop.tell(ev.JobChanged(at=1.0, job=A, min_gpus=3))
    assert shop.state.records[A].job.min_gpus == 1


def test_a_job_starts_after_the_one_it_waits_for() -> None:
    shop = Shop(4)
    shop.run(A)
    shop.submit(B, after=(Dependency(A),))
    shop.submit(C, after=(Dependency(A), Dependency(B, any_end=True)))
    assert shop.state.blocked == {B, C}
    shop.end(A)
    assert (shop.state.blocked, list(shop.state.schedule)) == ({C}, [B])
    shop.end(B, EndReason.FAILED)
    assert list(shop.state.schedule) == [C]


def test_a_job_ends_whose_dependency_failed_and_so_do_those_after_it() -> None:
    shop = Shop(4)
    shop.run(A)
    shop.submit(B, after=(Dependency(A),))
    shop.submit(C, after=(Dependency(B),))
    plan = shop.tell(ev.JobEnded(1.0, A, EndReason.FAILED))
    (finish,) = plan.actions
    assert isinstance(finish, Finish)
    assert "because a has ended: failed (--after a)" in finish.message
    assert shop.end(B, EndReason.CANCELLED) == ["Finish c"]


def test_a_dependency_on_an_ended_job_is_decided_at_once() -> None:
    shop = Shop(4)
    shop.run(A)
    shop.end(A, EndReason.CANCELLED)
    assert kinds(shop.submit(B, after=(Dependency(A, any_end=True),))) == ["Start b"]
    assert kinds(shop.submit(C, after=(Dependency(A),))) == ["Finish c"]
    assert kinds(shop.submit(JobId("d"), after=(Dependency(JobId("x")),))) == ["Finish d"]


def test_an_array_has_no_more_tasks_than_its_limit() -> None:
    shop = Shop(8)
    tasks = [JobId(f"t_{i}") for i in range(5)]
    for task in tasks:
        shop.submit(task, array="t", array_limit=2)
    assert list(shop.state.schedule) == tasks[:2]
    shop.tell(ev.CancelRequested(1.0, tasks[2]))  # one of those in line
    shop.tell(ev.JobEnded(1.0, tasks[2], EndReason.CANCELLED))
    shop.end(tasks[0])
    assert list(shop.state.schedule) == [tasks[1], tasks[3]]
    shop.end(tasks[1])
    assert list(shop.state.schedule) == [tasks[3], tasks[4]]
    shop.end(tasks[3])
    shop.end(tasks[4])
    assert not shop.state.gates._arrays


def test_a_snapshot_keeps_what_blocks_a_job() -> None:
    shop = Shop(8)
    shop.run(A)
    shop.submit(B, after=(Dependency(A),))
    shop.submit(C)
    shop.tell(ev.JobHeld(1.0, C, "ann"))
    for i in range(3):
        shop.submit(JobId(f"t_{i}"), array="t", array_limit=2)
    shop.scheduler.state = State.restored(decode_snapshot(encode_saved(shop.state.snapshot())))
    check_invariants(shop.state)
    assert shop.state.blocked >= {B, JobId("t_2")}
    shop.end(A)
    assert B in shop.state.schedule
    shop.end(JobId("t_0"))
    assert JobId("t_2") in shop.state.schedule


class Told(Fifo):
    """Remembers what it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.observed: list[object] = []

    def observe(self, event: ev.Event | PlanAdopted, view: View) -> None:
        self.observed.append(event)


def test_a_warning_changes_nothing_and_no_policy_observes_it() -> None:
    shop, policy = Shop(1), Told()
    shop.scheduler = Scheduler(Cluster.of(1), policy)
    shop.run(A)
    policy.observed.clear()
    before = msgspec.to_builtins(shop.state.records[A])
    assert shop.tell(ev.JobWarned(0.0, A, "idle", "Its GPU is idle.")).says_nothing
    assert not policy.observed
    assert msgspec.to_builtins(shop.state.records[A]) == before
    shop.tell(ev.JobWarned(3.0, C, "idle", "of an unknown job"))
    assert shop.state.dropped["unknown"] == 1
