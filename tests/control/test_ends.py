"""A job that finishes while an order for it is pending: its end waits for no worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ones.control.clock import Clock
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import LiveJob, LiveWorker, OrderProgress
from ones.control.live.live_state import EngineDeps
from ones.control.live.recovery import take_over
from ones.control.recorder import recover
from ones.control.store import Store
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.job import EndReason, Job, JobId
from ones.core.lifecycle import OrderKind
from ones.core.plan import Finish, Rescale
from ones.core.record import InFlight, JobRecord
from ones.core.schedule import Allocation
from ones.core.state import Occupant
from ones.exec import Exit
from ones.launchers import LaunchedProcess
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.policies import create
from tests.control.test_report_handlers import HEADER

A = JobId("a-1")
GPUS = [Gpu(NodeId("n0"), index) for index in range(3)]
OLD, NEW = 4, 7  # plans


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LiveEngine]:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    scheduler, recorder = recover(store, HEADER, create("fifo"))
    launcher = LocalLauncher(tmp_path / "runs", cpu_slots("n0", 3))
    launcher.open(lambda event: None)
    yield LiveEngine(
        scheduler,
        EngineDeps(
            store=store, recorder=recorder, launcher=launcher, clock=Clock(),
            tokens=JobTokens(b"key"), url="http://127.0.0.1:1", checkpoints=str(tmp_path),
        ),
    )  # fmt: skip
    launcher.close(kill=True)
    store.close()


def job_with(engine: LiveEngine, *plans: int) -> LiveJob:
    """One worker for each, launched by that plan."""
    job = engine.live.jobs[A] = LiveJob(A, Submission(name="a", argv=("-",), cwd="/"))
    engine.live.state.add(JobRecord(Job(id=A, submitted_at=0.0), 0, 0.0, 0.0))
    for plan, gpu in zip(plans, GPUS, strict=False):
        job.workers[f"{A}~{plan}~{gpu}"] = LiveWorker(f"{A}~{plan}~{gpu}", (gpu,), plan)
    return job


def order(
    engine: LiveEngine,
    kind: OrderKind,
    gpus: list[Gpu],
    *,
    published: bool = False,
) -> None:
    """Plan NEW orders this."""
    allocation = Allocation.even(gpus, 6) if kind is not OrderKind.STOP else None
    engine.live.state.records[A].in_flight = InFlight(kind, NEW, allocation)
    engine.live.jobs[A].progress = OrderProgress(NEW, published=published)


def emitted(engine: LiveEngine) -> list[type[ev.Event]]:
    return [type(delivered.event) for delivered in engine.live.out]


def test_joining_workers_that_were_starting_are_not_waited_for(engine: LiveEngine) -> None:
    job = job_with(engine, OLD, OLD, NEW)
    order(engine, OrderKind.RESCALE, GPUS)
    first, second, _ = job.workers.values()
    assert not engine.exits.done(job, first)
    assert engine.exits.done(job, second)
    assert job.end_reported


def test_a_member_of_the_group_is_waited_for(engine: LiveEngine) -> None:
    job = job_with(engine, OLD, NEW)  # the switch to the second one is over
    first, second = job.workers.values()
    assert not engine.exits.done(job, first)
    assert engine.exits.done(job, second)


def test_slots_of_an_order_that_came_too_late_are_given_back(engine: LiveEngine) -> None:
    job = job_with(engine, OLD)
    job.end_reported = True
    engine.runner.begin(Rescale(A, Allocation.even(GPUS, 6)), NEW)
    left = [out.event for out in engine.live.out]
    assert [event.gpu for event in left if isinstance(event, ev.WorkerLeft)] == GPUS[1:]
    assert not any(plan == NEW for plan in (w.plan for w in job.workers.values()))


def test_a_gpu_of_a_worker_that_ended_quietly_gets_no_other_before_that_is_settled(
    engine: LiveEngine,
) -> None:
    """Else its `WorkerLeft`, said when the job ends, frees a GPU where the new worker lives."""
    job = job_with(engine, OLD, OLD)
    first, second = job.workers.values()
    engine.exits.exited(second.launch, Exit(code=0, at=0.0, cause="exited"))
    assert job.quiet == [second]
    engine.runner.begin(Rescale(A, Allocation.even(GPUS[:2], 8)), NEW)
    assert list(job.workers.values()) == [first], "no launch where the quiet one was"
    assert engine.exits.done(job, first)


def test_a_start_with_a_fenced_worker_on_a_node_that_is_back_is_given_up(
    engine: LiveEngine,
) -> None:
    """The node was lost and came back while the controller was down: no event reports the loss."""
    job = job_with(engine, NEW)
    order(engine, OrderKind.START, GPUS[:1])
    (worker,) = job.workers.values()
    engine.exits.exited(worker.launch, Exit(code=None, at=0.0, cause="fenced"))
    kinds = emitted(engine)
    assert kinds == [ev.WorkerLeft, ev.RescaleFailed]


@pytest.mark.parametrize("kind", [OrderKind.RESCALE, OrderKind.STOP])
def test_a_job_ends_only_after_its_leaving_worker_has_exited(
    engine: LiveEngine, kind: OrderKind
) -> None:
    """It trains until it leaves, and may be the one that reports the last epoch."""
    job = job_with(engine, OLD, OLD)
    first, second = job.workers.values()
    order(engine, kind, GPUS[1:2], published=True)
    first.leaving = True
    assert not engine.exits.done(job, second)
    engine.exits.exited(second.launch, Exit(code=0, at=0.0, cause="exited"))
    assert not job.end_reported
    engine.exits.exited(first.launch, Exit(code=0, at=0.0, cause="exited"))
    assert job.end_reported
    assert emitted(engine) == [ev.JobEnded, ev.WorkerLeft, ev.WorkerLeft]


def test_exits_are_forgotten_when_the_end_of_the_job_is_safe(engine: LiveEngine) -> None:
    """A controller that crashes before needs them: else it starts the job again."""
    forgotten: list[str] = []
    engine.live.launcher.forget = forgotten.append  # type: ignore[method-assign, assignment]
    job = job_with(engine, OLD)
    (worker,) = job.workers.values()
    engine.exits.exited(worker.launch, Exit(code=0, at=0.0, cause="exited"))
    assert job.end_reported
    engine.live.store.flush()
    assert not forgotten, "its `JobEnded` has yet to go out"
    engine.live.out.clear()  # they have gone out and are written
    engine.live.inbox.get()()
    engine.live.store.flush()
    assert forgotten == [A]


def test_a_gpu_that_a_plan_has_filled_again_is_not_reported_free(engine: LiveEngine) -> None:
    """Two workers are lost at once; the plan made after the first puts one where the second was."""
    job = job_with(engine, OLD, OLD, OLD)
    _, second, third = job.workers.values()
    for worker in (second, third):
        engine.exits.exited(worker.launch, Exit(code=0, at=0.0, cause="exited"))
    engine._deadlines.check(engine.live.clock.now() + 1000.0)
    assert emitted(engine) == [ev.WorkerLost, ev.WorkerLost]
    delivered = engine.next_event(until=0.0)
    assert delivered is not None
    assert isinstance(delivered.event, ev.WorkerLost)
    assert delivered.event.gpu == GPUS[1]
    engine.runner.begin(Rescale(A, Allocation.even(GPUS, 6)), NEW)
    assert {worker.plan for worker in job.workers.values()} == {OLD, NEW}
    delivered = engine.next_event(until=0.0)
    assert delivered is not None
    assert isinstance(delivered.event, ev.Woke), f"{GPUS[2]} has a new worker: {delivered}"


def test_a_rescale_that_loses_a_member_before_its_order_is_given_up(engine: LiveEngine) -> None:
    job = job_with(engine, OLD, OLD, NEW)
    order(engine, OrderKind.RESCALE, GPUS)
    engine.exits.exited(next(iter(job.workers)), Exit(code=1, at=0.0, cause="exited"))
    assert emitted(engine) == [ev.WorkerLost, ev.RescaleFailed]


def test_a_cancelled_job_frees_the_gpus_of_workers_that_ended_quietly(engine: LiveEngine) -> None:
    job = job_with(engine, OLD, OLD)
    engine.exits.exited(list(job.workers)[1], Exit(code=0, at=0.0, cause="exited"))
    engine.runner.begin(Finish(A, EndReason.CANCELLED), NEW)
    events = [out.event for out in engine.live.out]
    assert [type(event) for event in events] == [ev.JobEnded, ev.WorkerLeft]
    assert isinstance(events[1], ev.WorkerLeft)
    assert events[1].gpu == GPUS[1]


def test_stopped_joining_workers_are_not_waited_for(engine: LiveEngine) -> None:
    job = job_with(engine, OLD, NEW)
    order(engine, OrderKind.RESCALE, GPUS[:2])
    engine.runner.give_up_rescale(job, "a test")
    assert engine.exits.done(job, next(iter(job.workers.values())))


def test_a_published_switch_fails_when_the_last_worker_has_left(engine: LiveEngine) -> None:
    """Both workers were stopped from outside: no other worker would answer the order."""
    job = job_with(engine, OLD, OLD)
    order(engine, OrderKind.RESCALE, GPUS[:1], published=True)
    for launch in list(job.workers):
        assert ev.RescaleFailed not in emitted(engine)
        engine.exits.exited(launch, Exit(code=143, at=0.0, cause="stopped"))
    kinds = emitted(engine)
    assert kinds == [ev.WorkerLeft, ev.WorkerLeft, ev.RescaleFailed]


def test_all_workers_of_a_job_that_has_ended_are_stopped_after_a_restart(
    engine: LiveEngine,
) -> None:
    """Nothing else would end them: their job has no order on its way any more."""
    stopped: list[str] = []
    there = {
        f"{A}~{OLD}~n0.{gpu.index}": LaunchedProcess(
            id=f"{A}~{OLD}~n0.{gpu.index}", job=A, slots=(str(gpu),), pid=gpu.index + 1
        )
        for gpu in GPUS
    }
    engine.live.launcher = SimpleNamespace(
        running=lambda: there,
        stop=lambda id, grace: stopped.append(id),
        forget=lambda job: pytest.fail("its exits are still needed"),
    )
    engine.live.state.occupants = {gpu: Occupant(A, OLD) for gpu in GPUS}
    take_over(engine, {}, {})
    assert stopped == list(there)
