"""A job that is through while an order for it is on its way: its end waits for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ones.control.clock import Clock
from ones.control.live.adoption import adopt
from ones.control.live.departures import done, exited
from ones.control.live.engine import LiveEngine, Surroundings
from ones.control.live.jobs import Kind, LiveJob, LiveWorker, Pending
from ones.control.live.orders import begin, give_up_rescale
from ones.control.live.watch import look_round
from ones.control.recorder import recover
from ones.control.store import Store
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.job import EndReason, JobId
from ones.core.plan import Finish, Rescale
from ones.core.schedule import Allocation
from ones.core.tables import Occupant
from ones.exec import Exit
from ones.launchers import LaunchedProcess
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.policies import create
from tests.control.test_hearing import HEADER

A = JobId("a-1")
GPUS = [Gpu(NodeId("n0"), index) for index in range(3)]
OLD, NEW = 4, 7  # plans


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LiveEngine]:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    brain, recorder = recover(store, HEADER, create("fifo"))
    launcher = LocalLauncher(tmp_path / "runs", cpu_slots("n0", 3))
    launcher.open(lambda event: None)
    yield LiveEngine(
        brain,
        Surroundings(
            store=store, recorder=recorder, launcher=launcher, clock=Clock(),
            tokens=JobTokens(b"key"), url="http://127.0.0.1:1", checkpoints=str(tmp_path),
        ),
    )  # fmt: skip
    launcher.close(kill=True)
    store.close()


def job_with(*plans: int) -> LiveJob:
    """One worker for each, launched by that plan."""
    job = LiveJob(A, Submission(name="a", argv=("-",), cwd="/"))
    for plan, gpu in zip(plans, GPUS, strict=False):
        job.workers[f"{A}~{plan}~{gpu}"] = LiveWorker(f"{A}~{plan}~{gpu}", (gpu,), plan)
    return job


def test_newcomers_that_were_on_their_way_are_not_waited_for(engine: LiveEngine) -> None:
    job = engine.jobs[A] = job_with(OLD, OLD, NEW)
    job.pending = Pending(Kind.RESCALE, NEW, Allocation.even(GPUS, 6))
    first, second, _ = job.workers.values()
    assert not done(engine, job, first)
    assert done(engine, job, second)
    assert job.ended


def test_who_trains_with_the_others_is_waited_for(engine: LiveEngine) -> None:
    job = engine.jobs[A] = job_with(OLD, NEW)  # the switch to the second one is over
    first, second = job.workers.values()
    assert not done(engine, job, first)
    assert done(engine, job, second)


def test_slots_of_an_order_that_came_too_late_are_given_back(engine: LiveEngine) -> None:
    job = engine.jobs[A] = job_with(OLD)
    job.ended = True
    begin(engine, Rescale(A, Allocation.even(GPUS, 6)), NEW)
    left = [out.event for out in engine.out]
    assert [event.gpu for event in left if isinstance(event, ev.WorkerLeft)] == GPUS[1:]
    assert not any(plan == NEW for plan in (w.plan for w in job.workers.values()))


def test_a_gpu_of_a_worker_that_ended_quietly_gets_no_other_before_that_is_settled(
    engine: LiveEngine,
) -> None:
    """Else its `WorkerLeft`, said when the job ends, frees a GPU where the new worker lives."""
    job = engine.jobs[A] = job_with(OLD, OLD)
    first, second = job.workers.values()
    exited(engine, second.launch, Exit(code=0, at=0.0, cause="exited"))
    assert job.quiet == [second]
    begin(engine, Rescale(A, Allocation.even(GPUS[:2], 8)), NEW)
    assert list(job.workers.values()) == [first], "no launch where the quiet one was"
    assert done(engine, job, first)


def test_a_start_whose_worker_was_fenced_on_a_node_that_is_back_is_given_up(
    engine: LiveEngine,
) -> None:
    """The node was lost and came back while the controller was away: nobody tells its loss."""
    job = engine.jobs[A] = job_with(NEW)
    job.pending = Pending(Kind.START, NEW, Allocation.even(GPUS[:1], 2))
    (worker,) = job.workers.values()
    exited(engine, worker.launch, Exit(code=None, at=0.0, cause="fenced"))
    kinds = [type(out.event) for out in engine.out]
    assert kinds == [ev.WorkerLeft, ev.RescaleFailed]
    assert job.pending is None


@pytest.mark.parametrize("kind", [Kind.RESCALE, Kind.STOP])
def test_a_worker_that_was_told_to_leave_is_heard_before_the_job_counts_as_done(
    engine: LiveEngine, kind: Kind
) -> None:
    """It trains until it leaves, and may be the one that reports the last epoch."""
    job = engine.jobs[A] = job_with(OLD, OLD)
    first, second = job.workers.values()
    job.pending = Pending(kind, NEW, Allocation.even(GPUS[1:2], 6), published=True)
    first.leaving = True
    assert not done(engine, job, second)
    exited(engine, second.launch, Exit(code=0, at=0.0, cause="exited"))
    assert not job.ended
    exited(engine, first.launch, Exit(code=0, at=0.0, cause="exited"))
    assert job.ended
    assert [type(out.event) for out in engine.out] == [ev.JobEnded, ev.WorkerLeft, ev.WorkerLeft]


def test_exits_are_forgotten_when_the_end_of_the_job_is_safe(engine: LiveEngine) -> None:
    """A controller that crashes before needs them: else it starts the job again."""
    forgotten: list[str] = []
    engine.launcher.forget = forgotten.append  # type: ignore[method-assign, assignment]
    job = engine.jobs[A] = job_with(OLD)
    (worker,) = job.workers.values()
    exited(engine, worker.launch, Exit(code=0, at=0.0, cause="exited"))
    assert job.ended
    engine.store.flush()
    assert not forgotten, "its `JobEnded` has yet to go out"
    engine.out.clear()  # they have gone out and are written
    engine._inbox.get()()
    engine.store.flush()
    assert forgotten == [A]


def test_a_gpu_that_a_plan_has_filled_again_is_not_told_as_free(engine: LiveEngine) -> None:
    """Two workers are lost at once; the plan made after the first puts one where the second was."""
    job = engine.jobs[A] = job_with(OLD, OLD, OLD)
    _, second, third = job.workers.values()
    for worker in (second, third):
        exited(engine, worker.launch, Exit(code=0, at=0.0, cause="exited"))
    look_round(engine, engine.clock.now() + 1000.0)
    assert [type(out.event) for out in engine.out] == [ev.WorkerLost, ev.WorkerLost]
    event = engine.next_event(until=0.0)
    assert isinstance(event, ev.WorkerLost)
    assert event.gpu == GPUS[1]
    begin(engine, Rescale(A, Allocation.even(GPUS, 6)), NEW)
    assert {worker.plan for worker in job.workers.values()} == {OLD, NEW}
    event = engine.next_event(until=0.0)
    assert isinstance(event, ev.Woke), f"{GPUS[2]} has a new worker: {event}"


def test_a_rescale_whose_member_is_lost_before_it_was_told_is_given_up(engine: LiveEngine) -> None:
    job = engine.jobs[A] = job_with(OLD, OLD, NEW)
    job.pending = Pending(Kind.RESCALE, NEW, Allocation.even(GPUS, 6))
    exited(engine, next(iter(job.workers)), Exit(code=1, at=0.0, cause="exited"))
    assert [type(out.event) for out in engine.out] == [ev.WorkerLost, ev.RescaleFailed]
    assert job.pending is None


def test_a_cancelled_job_frees_the_gpus_of_workers_that_ended_quietly(engine: LiveEngine) -> None:
    job = engine.jobs[A] = job_with(OLD, OLD)
    exited(engine, list(job.workers)[1], Exit(code=0, at=0.0, cause="exited"))
    begin(engine, Finish(A, EndReason.CANCELLED), NEW)
    events = [out.event for out in engine.out]
    assert [type(event) for event in events] == [ev.JobEnded, ev.WorkerLeft]
    assert isinstance(events[1], ev.WorkerLeft)
    assert events[1].gpu == GPUS[1]


def test_newcomers_that_were_sent_away_are_not_waited_for(engine: LiveEngine) -> None:
    job = engine.jobs[A] = job_with(OLD, NEW)
    job.pending = Pending(Kind.RESCALE, NEW, Allocation.even(GPUS[:2], 6))
    give_up_rescale(engine, job, "a test")
    assert done(engine, job, next(iter(job.workers.values())))


def test_a_switch_that_was_told_fails_when_the_last_worker_has_left(engine: LiveEngine) -> None:
    """Both were stopped from outside: nobody else would answer the order."""
    job = engine.jobs[A] = job_with(OLD, OLD)
    job.pending = Pending(Kind.RESCALE, NEW, Allocation.even(GPUS[:1], 6), published=True)
    for launch in list(job.workers):
        assert job.pending is not None
        exited(engine, launch, Exit(code=143, at=0.0, cause="stopped"))
    assert job.pending is None
    kinds = [type(out.event) for out in engine.out]
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
    engine.launcher = SimpleNamespace(
        running=lambda: there,
        stop=lambda id, grace: stopped.append(id),
        forget=lambda job: pytest.fail("its exits are still needed"),
    )
    engine.state.occupants = {gpu: Occupant(A, OLD) for gpu in GPUS}
    adopt(engine, engine.state, engine.store, engine.launcher)
    assert stopped == list(there)
