"""What is acknowledged is safe: not before the commit, whichever line asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ones.control.clock import Clock
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import NOW, LiveJob
from ones.control.live.live_state import EngineDeps
from ones.control.persistence import Done
from ones.control.recorder import begin, recover
from ones.control.store import Entry, Operation, Store
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.job import Job, JobId, SwitchCost
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.policies import create
from ones.runlog import VERSION, Header
from ones.wire import Reports
from ones.wire import messages as wire

A = JobId("a-1")
HEADER = Header(
    version=VERSION, software="0", policy="fifo", seed=0, nodes=(), switch_cost=SwitchCost()
)


class SlowStore(Store):
    """Takes writes and holds them back until the test releases them."""

    held: list[tuple[list[Entry], list[Operation], Done | None]] | None = None

    def write(self, entries=(), operations=(), done=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        if self.held is not None and (entries or operations or done):
            self.held.append((list(entries), list(operations), done))
        else:
            super().write(entries, operations, done)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for entries, operations, done in held:
            super().write(entries, operations, done)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlowStore]:
    store = SlowStore(f"sqlite:///{tmp_path}/ones.db")
    yield store
    store.close()


def test_under_load_cards_are_made_now_and_then_and_at_rest_at_once(
    store: SlowStore, tmp_path: Path
) -> None:
    begin(store, HEADER)
    scheduler, recorder = recover(store, HEADER, create("fifo"))
    shown: list[set[str]] = []
    launcher = LocalLauncher(tmp_path / "runs", cpu_slots("n0", 1))
    launcher.open(lambda event: None)
    engine = LiveEngine(
        scheduler,
        EngineDeps(
            store=store,
            recorder=recorder,
            launcher=launcher,
            clock=Clock(),
            tokens=JobTokens(b"key"),
            url="http://127.0.0.1:1",
            checkpoints=str(tmp_path),
        ),
        lambda state, jobs: shown.append(jobs),
    )
    engine.next_event(until=0.0)  # looks round once
    shown.clear()
    engine._shown_at = engine.next_tick = float("inf")  # it is never long ago
    for number in range(20):
        job = Job(id=JobId(f"j{number}"), submitted_at=0.0)
        engine.tell(ev.JobSubmitted(NOW, job))
    for _ in range(20):
        delivered = engine.next_event(until=float("inf"))
        assert delivered is not None
        assert not shown, "others wait to be heard"
        recorder(*delivered)
        scheduler.handle(delivered.event)
    engine.stop()
    engine.live.inbox.get()()
    assert engine.next_event(until=float("inf")) is None
    assert shown == [{f"j{number}" for number in range(20)}]
    engine.tell(ev.PriorityChanged(NOW, JobId("j3"), 2.0))
    engine._stopping, engine._shown_at = False, 0.0
    delivered = engine.next_event(until=float("inf"))
    assert delivered is not None
    recorder(*delivered)
    engine.tell(ev.PriorityChanged(NOW, JobId("j4"), 2.0))
    engine._shown_at = 0.0  # that is long ago
    engine.next_event(until=float("inf"))
    assert shown[1:] == [{"j3"}]
    launcher.close(kill=True)


def test_a_report_is_acknowledged_only_when_it_is_on_disk_and_counts_once(
    store: SlowStore, tmp_path: Path
) -> None:
    begin(store, HEADER)
    scheduler, recorder = recover(store, HEADER, create("fifo"))
    launcher = LocalLauncher(tmp_path / "runs", cpu_slots("n0", 1))
    launcher.open(lambda event: None)
    engine = LiveEngine(
        scheduler,
        EngineDeps(
            store=store,
            recorder=recorder,
            launcher=launcher,
            clock=Clock(),
            tokens=JobTokens(b"key"),
            url="http://127.0.0.1:1",
            checkpoints=str(tmp_path),
        ),
    )

    def turn() -> ev.Event | None:
        """The loop, once."""
        delivered = engine.next_event(until=0.0)
        event = delivered.event if delivered is not None else None
        if delivered is not None and event is not None and not isinstance(event, ev.Woke):
            recorder(*delivered)
            plan = scheduler.handle(event)
            if not plan.says_nothing:
                recorder(plan)
                engine.carry_out(plan)
        return event

    engine.live.jobs[A] = LiveJob(A, Submission(name="a", argv=("sleep", "100"), cwd="/"))
    engine.live.emit(ev.NodeUp(NOW, NodeId("n0"), 1))
    engine.live.emit(ev.JobSubmitted(NOW, Job(id=A, submitted_at=0.0)))
    turn()
    turn()
    (worker,) = engine.live.jobs[A].workers.values()
    joined = wire.Joined(dataset_size=10, base_batch=2, optimizer="sgd", parameter_bytes=8)
    message = Reports(job=A, worker="n0/0", plan=1, first=1, reports=(joined, wire.Ready()))
    told: list[Exception | None] = []
    store.held = []
    engine.reports.handle(message, told.append)
    for _ in range(6):
        engine.next_tick = float("inf")  # the clock has nothing to say here
        engine.live.post(lambda: None)
        if engine.live.out or engine.live.next_tasks:
            turn()
        else:
            engine.live.inbox.get()()
    assert (worker.heard, worker.safe, told) == (2, 0, [])
    store.release()
    store.flush()
    assert (worker.safe, told) == (2, [None])
    engine.reports.handle(message, told.append)
    while engine.live.next_tasks:
        engine.live.next_tasks.popleft()()
    assert not engine.live.out, "a report that comes again is known"
    launcher.close(kill=True)
