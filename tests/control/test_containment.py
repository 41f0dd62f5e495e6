"""An event or a policy that raises costs its own job at most, and the log says so for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ones.control.clock import Clock
from ones.control.containment import FALLBACK, MOST_FAILURES, Containment
from ones.control.live import report_handlers
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import NOW, LiveJob
from ones.control.live.live_state import EngineDeps
from ones.control.recorder import begin, recover
from ones.control.run_log_export import write_run_log
from ones.control.store import Store
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.engine import drive
from ones.core.job import EndReason, Job, JobId, SwitchCost
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision, Policy
from ones.core.view import View
from ones.errors import BugError
from ones.exec.output import Chunk
from ones.launchers import Launch, LaunchedProcess, Slot
from ones.launchers.api import Listener
from ones.policies import create
from ones.runlog import VERSION, Header, RunLog, replay
from ones.wire import Reports
from ones.wire import messages as wire

A, B, C = JobId("a"), JobId("b"), JobId("c")
N0 = NodeId("n0")
HEADER = Header(
    version=VERSION, software="0", policy="touchy", seed=0, nodes=(), switch_cost=SwitchCost()
)


class Touchy:
    """`fifo`, but some things make it raise."""

    native_mechanism = "elastic"

    def __init__(self, world: World) -> None:
        self._world, self._fifo = world, create("fifo")
        self.seen: list[str] = []

    @property
    def decides_on(self) -> frozenset[type[ev.Event]]:
        return self._fifo.decides_on

    def observe(self, event: ev.Event | PlanAdopted, view: View) -> None:
        self.seen.append(type(event).__name__)
        if self._world.poison(event):
            raise ZeroDivisionError("poison")
        self._fifo.observe(event, view)

    def decide(self, view: View) -> Decision:
        if self._world.undecided(view):
            raise KeyError("no idea")
        return self._fifo.decide(view)

    def save(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.seen = list(saved["seen"])


class StillLauncher:
    """Starts nothing, and reports nothing."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.broken = False

    def open(self, listener: Listener) -> None:
        pass

    def slots(self) -> list[Slot]:
        return [Slot(node="n0", index=i) for i in range(3)]

    def launch(self, launch: Launch) -> None:
        if self.broken:
            raise OSError("no more processes")
        self.launched.append(launch.id)

    def stop(self, id: str, grace_seconds: float) -> None:
        pass

    def forget(self, job: str) -> None:
        pass

    def running(self) -> dict[str, LaunchedProcess]:
        return {}

    def history(self, job: str) -> list[LaunchedProcess]:
        return []

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return Chunk(b"", 0, 0)

    def close(self, *, kill: bool) -> None:
        pass


class World:
    """A database and, on it, the scheduler of one service after another. Time is set by hand."""

    def __init__(self, path: Path) -> None:
        self.database = f"sqlite:///{path}/ones.db"
        self.poison: Callable[[object], bool] = lambda event: False
        self.undecided: Callable[[View], bool] = lambda view: False
        self.time = 1000.0
        self.launcher = StillLauncher()
        self.up()

    def up(self) -> None:
        self.store = Store(self.database)
        begin(self.store, HEADER)
        self.containment = Containment(self.store, HEADER, self.make)
        self.scheduler = self.containment.scheduler
        self.engine = LiveEngine(
            self.scheduler,
            EngineDeps(
                store=self.store,
                recorder=self.containment.recorder,
                launcher=self.launcher,
                clock=Clock(wall=lambda: self.time, monotonic=lambda: self.time),
                tokens=JobTokens(b"key"),
                url="http://127.0.0.1:1",
                checkpoints="/tmp",
            ),
        )
        self.containment.attach(self.engine.live)
        for job in self.scheduler.state.records:
            self.enter(job)

    def make(self, name: str) -> Policy:
        return Touchy(self) if name == "touchy" else create(name)

    def enter(self, job: JobId) -> None:
        self.engine.live.jobs[job] = LiveJob(job, Submission(name=job, argv=("true",), cwd="/"))

    def say(self, *events: ev.Event) -> None:
        """Run the loop until these, and what follows at once, are handled."""
        for event in events:
            if isinstance(event, ev.JobSubmitted):
                self.enter(event.job.id)
            self.engine.live.emit(event)
        self.engine.stop()
        drive(self.scheduler, self.engine, self.containment.recorder, self.containment.contain)
        self.engine._stopping = False

    def start(self) -> None:
        """Three jobs on a GPU each."""
        self.say(ev.NodeUp(NOW, N0, 3), *(submitted(job) for job in (A, B, C)))
        for job in (A, B, C):
            self.say(
                ev.WorkerReady(NOW, job, self.scheduler.state.records[job].generation, gpu(job))
            )

    def epoch(self, job: JobId, number: int) -> ev.EpochFinished:
        generation = self.scheduler.state.records[job].generation
        return ev.EpochFinished(
            at=NOW, job=job, generation=generation, epoch=number, samples=100, steps=10, loss=1.0
        )

    def logged(self, kind: type[ev.Event]) -> list[Any]:
        self.store.flush()
        path = Path(self.database.removeprefix("sqlite:///")).with_name("run.jsonl")
        write_run_log(self.database, path)
        return [entry for entry in RunLog(path) if isinstance(entry, kind)]

    def assert_the_log_gives_the_same(self) -> None:
        """Recovery from the database equals the run, and so does a replay of the exported log."""
        self.store.flush()
        again, _ = recover(self.store, HEADER, self.make("touchy"))
        assert again.state.snapshot() == self.scheduler.state.snapshot()
        if self.containment.policy == "touchy":
            assert again.policy.save() == self.scheduler.policy.save()
        self.logged(ev.Woke)
        log = RunLog(Path(self.database.removeprefix("sqlite:///")).with_name("run.jsonl"))
        assert replay(log, self.make("touchy"), make=self.make).difference is None


def submitted(job: JobId) -> ev.JobSubmitted:
    return ev.JobSubmitted(NOW, Job(id=job, submitted_at=0.0, owner=f"owner of {job}"))


def gpu(job: JobId) -> Gpu:
    return Gpu(N0, (A, B, C).index(job))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()


def test_a_report_that_makes_the_policy_raise_fails_its_job_and_no_other(world: World) -> None:
    world.start()
    world.say(world.epoch(A, 1), world.epoch(B, 1))
    world.poison = lambda event: isinstance(event, ev.EpochFinished) and event.epoch == 2
    world.say(world.epoch(A, 2))
    assert A not in world.scheduler.state.records
    ended = world.scheduler.state.ended[A]
    assert ended.reason is EndReason.FAILED
    assert ended.message.startswith("The service could not handle its event EpochFinished: `obs")
    assert "ZeroDivisionError: poison" in ended.message
    assert ended.epochs == 1, "it is as if the report had never come"
    (mark,) = world.logged(ev.EntryQuarantined)
    assert (mark.job, mark.kind, mark.policy_only) == (A, "EpochFinished", False)
    assert set(world.scheduler.state.records) == {B, C}
    assert world.containment.policy == "touchy"
    world.say(world.epoch(B, 3))
    assert world.scheduler.state.records[B].epochs == 3
    world.assert_the_log_gives_the_same()


def test_state_and_policy_are_those_that_never_saw_the_event(world: World, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    spared = World(tmp_path / "other")
    world.poison = lambda event: isinstance(event, ev.EpochFinished) and event.epoch == 2
    for one in (world, spared):
        one.start()
    world.say(world.epoch(A, 2))
    (mark,) = world.logged(ev.EntryQuarantined)
    spared.say(mark)
    for one in (world, spared):
        one.say(one.epoch(B, 1))
    assert world.scheduler.state.snapshot() == spared.scheduler.state.snapshot()
    assert world.scheduler.policy.save() == spared.scheduler.policy.save()
    spared.store.close()


def test_an_event_that_moves_workers_is_kept_from_the_policy_only(world: World) -> None:
    world.start()
    world.poison = lambda event: isinstance(event, ev.WorkerLost)
    world.engine.live.jobs[A].workers.clear()  # its process is gone
    world.say(ev.WorkerLost(NOW, A, world.scheduler.state.records[A].generation, gpu(A), "died"))
    assert gpu(A) not in world.scheduler.state.occupants
    assert world.scheduler.state.ended[A].reason is EndReason.FAILED
    (mark,) = world.logged(ev.EntryQuarantined)
    assert mark.policy_only
    world.assert_the_log_gives_the_same()


def test_an_event_that_the_state_refuses_is_skipped(world: World) -> None:
    world.start()
    world.say(ev.NodeUp(NOW, N0, 7))  # it has three GPUs, and is up
    (mark,) = world.logged(ev.EntryQuarantined)
    assert (mark.job, mark.kind) == (None, "NodeUp")
    assert "was reported up with 7" in mark.reason
    assert set(world.scheduler.state.records) == {A, B, C}
    world.assert_the_log_gives_the_same()


def test_a_decision_that_raises_keeps_the_schedule_and_is_tried_again_later(world: World) -> None:
    world.say(ev.NodeUp(NOW, N0, 3), submitted(A))
    world.undecided = lambda view: (B in view.jobs and view.now < 1003.0) or C in view.jobs
    world.say(submitted(B))
    assert world.scheduler.state.schedule.get(A) is not None
    assert world.scheduler.state.schedule.get(B) is None
    (failed,) = world.logged(ev.PolicyFailed)
    assert (failed.policy, failed.failures, failed.retry_at) == ("touchy", 1, 1001.0)
    assert "KeyError: 'no idea'" in failed.reason
    world.time = 1001.0
    world.say()
    assert [f.failures for f in world.logged(ev.PolicyFailed)] == [1, 2]
    assert world.scheduler.wake_at == 1003.0
    world.time = 1003.0
    world.say()
    assert world.scheduler.state.schedule.get(B) is not None
    world.say(submitted(C))
    assert [f.failures for f in world.logged(ev.PolicyFailed)] == [1, 2, 1]
    world.assert_the_log_gives_the_same()


def test_after_repeated_failures_fifo_takes_over_until_a_restart(world: World) -> None:
    world.say(ev.NodeUp(NOW, N0, 3), submitted(A))
    world.undecided = lambda view: B in view.jobs
    world.say(submitted(B))
    for _ in range(MOST_FAILURES):
        world.time = max(world.time, min(world.scheduler.wake_at, world.time + 100.0))
        world.say()
    assert world.containment.policy == FALLBACK
    assert "policy touchy failed; fifo decides instead" in world.containment.failing
    assert world.scheduler.state.schedule.get(B) is not None, "fifo has started it"
    (replaced,) = world.logged(ev.PolicyReplaced)
    assert replaced.policy == FALLBACK
    assert {failed.policy for failed in world.logged(ev.PolicyFailed)} == {"touchy"}
    world.assert_the_log_gives_the_same()
    world.store.close()
    world.undecided = lambda view: False
    world.up()
    world.say(submitted(C))
    assert world.containment.policy == "touchy"
    assert not world.containment.failing
    assert [r.policy for r in world.logged(ev.PolicyReplaced)] == [FALLBACK, "touchy"]


def test_killed_between_the_poison_and_its_mark(world: World) -> None:
    world.start()
    world.containment.recorder(world.epoch(A, 2))  # logged, and then the power failed
    world.store.close()
    world.poison = lambda event: isinstance(event, ev.EpochFinished) and event.epoch == 2
    world.up()
    world.say()
    assert world.scheduler.state.ended[A].reason is EndReason.FAILED
    assert len(world.logged(ev.EntryQuarantined)) == 1
    world.store.close()
    world.up()
    world.say()
    assert len(world.logged(ev.EntryQuarantined)) == 1, "it is known by now"
    world.assert_the_log_gives_the_same()


def test_a_policy_that_cannot_take_in_the_log_is_replaced(world: World) -> None:
    world.start()
    for number in range(1, 31):
        world.say(ev.PriorityChanged(NOW, B, float(number)))
    world.store.close()
    world.poison = lambda event: isinstance(event, ev.PriorityChanged)
    world.up()
    world.say()
    assert world.containment.policy == FALLBACK
    assert set(world.scheduler.state.records) == {A, B, C}
    assert world.scheduler.state.records[B].priority == 30.0


def test_a_policy_that_cannot_take_in_its_own_plan_is_replaced(world: World) -> None:
    world.poison = lambda event: isinstance(event, PlanAdopted)
    world.say(ev.NodeUp(NOW, N0, 3), submitted(A))
    for _ in range(MOST_FAILURES):
        world.time += 100.0
        world.say()
    assert world.containment.policy == FALLBACK
    assert world.scheduler.state.schedule.get(A) is not None


def test_a_launch_that_raises_fails_its_job_and_frees_its_gpu(world: World) -> None:
    world.launcher.broken = True
    world.say(ev.NodeUp(NOW, N0, 3), submitted(A))
    assert world.scheduler.state.ended[A].reason is EndReason.FAILED
    assert "no more processes" in world.scheduler.state.ended[A].message
    world.launcher.broken = False
    world.say(submitted(B))
    assert world.scheduler.state.schedule.get(B) is not None
    assert not any(o.job == A for o in world.scheduler.state.occupants.values())


def test_a_report_that_raises_is_answered_and_fails_its_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start()
    plan = world.scheduler.state.records[A].generation.plan
    told: list[Exception | None] = []

    def refuse(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(report_handlers, "event_of", refuse)
    message = Reports(job=A, worker="n0/0", plan=plan, first=1, reports=(wire.Ready(),))
    world.engine.reports.handle(message, told.append)
    world.say()
    assert isinstance(told[0], BugError)
    assert world.scheduler.state.ended[A].reason is EndReason.FAILED


def test_without_containment_exceptions_propagate(world: World) -> None:
    world.start()
    world.poison = lambda event: isinstance(event, ev.EpochFinished)
    world.engine.live.emit(world.epoch(A, 1))
    with pytest.raises(BugError, match="ZeroDivisionError: poison"):
        drive(world.scheduler, world.engine, world.containment.recorder)
