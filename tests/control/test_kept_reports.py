"""What a worker left on disk is heard once, before its exit, and is believed no more than HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ones.control.clock import Clock
from ones.control.live.engine import LiveEngine, Surroundings
from ones.control.live.hearing import hear
from ones.control.live.jobs import NOW, LiveJob
from ones.control.live.kept_reports import on_launcher
from ones.control.recorder import begin, recover
from ones.control.store import Store
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.job import Job, JobId
from ones.exec import Exit
from ones.launchers import Exited
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.policies import create
from ones.wire import Reports, pack
from ones.wire import messages as wire
from ones.wire.environment import KEPT_REPORTS, MOST_KEPT_BYTES
from tests.control.test_hearing import HEADER

A, B = JobId("a-1"), JobId("b-2")
JOINED = wire.Joined(dataset_size=10, base_batch=2, optimizer="sgd", parameter_bytes=8)
CLEAN = Exit(code=0, at=0.0, cause="exited")


def epoch(number: int, accuracy: float = 0.5) -> wire.Epoch:
    return wire.Epoch(epoch=number, steps=5, samples=10, loss=1.0, accuracy=accuracy)


class Still(LocalLauncher):
    """Starts nothing: what its workers do is told by the test."""

    def _launch(self, launch: Any) -> None:  # noqa: ANN401
        self._ledger.place(launch.id, "n0")


class Bench:
    """Two jobs with a worker each, and the loop turned by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(f"sqlite:///{root}/ones.db")
        begin(self.store, HEADER)
        self.brain, recorder = recover(self.store, HEADER, create("fifo"))
        self.recorder = recorder
        self.launcher = Still(root / "runs", cpu_slots("n0", 2))
        self.launcher.open(lambda event: None)
        self.engine = LiveEngine(
            self.brain.state,
            Surroundings(
                store=self.store,
                recorder=recorder,
                launcher=self.launcher,
                clock=Clock(),
                tokens=JobTokens(b"key"),
                url="http://127.0.0.1:1",
                checkpoints=str(root),
            ),
        )
        self.engine._next_tick = float("inf")  # no deadlines
        self.engine.say(ev.NodeUp(NOW, NodeId("n0"), 2))
        for job in (A, B):
            self.engine.jobs[job] = LiveJob(job, Submission(name=job, argv=("x",), cwd="/"))
            self.engine.say(ev.JobSubmitted(NOW, Job(id=job, submitted_at=0.0, max_gpus=1)))
        self.turn()

    def turn(self) -> list[ev.Event]:
        """Until there is nothing to do."""
        found = []
        while self.engine.out or not self.engine._inbox.empty():
            if not self.engine.out:
                self.engine._inbox.get()()
                continue
            event = self.engine.next_event(until=float("inf"))
            assert event is not None
            found.append(event)
            self.recorder(event)
            plan = self.brain.handle(event)
            if not plan.says_nothing:
                self.recorder(plan)
                self.engine.carry_out(plan)
        return found

    def launch(self, job: JobId) -> str:
        return next(iter(self.engine.jobs[job].workers))

    def plan(self, job: JobId) -> int:
        return next(iter(self.engine.jobs[job].workers.values())).plan

    def reports(self, job: JobId, first: int, *reports: wire.Report, **more: Any) -> Reports:
        where = next(iter(self.engine.jobs[job].workers.values())).name
        given = {"job": job, "worker": where, "plan": self.plan(job), "first": first, **more}
        return Reports(reports=reports, **given)

    def folder(self, job: JobId) -> Path:
        found = self.root / "runs" / "live" / job / "n0" / self.launch(job)
        found.mkdir(parents=True, exist_ok=True)
        return found

    def keep(self, job: JobId, *messages: Reports) -> None:
        text = b"".join(pack(message) + b"\n" for message in messages)
        (self.folder(job) / KEPT_REPORTS).write_bytes(text)

    def exit(self, job: JobId) -> list[ev.Event]:
        on_launcher(self.engine, Exited(self.launch(job), CLEAN))
        return self.turn()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.launcher.close(kill=True)
    bench.store.close()


def kinds(events: list[ev.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_they_are_told_before_the_exit_and_those_heard_before_are_not_told_again(
    bench: Bench,
) -> None:
    before = bench.reports(A, 1, JOINED, wire.Ready(), epoch(1, 0.1))
    hear(bench.engine, bench.store, before, lambda problem: None)
    bench.turn()
    bench.keep(
        A,
        bench.reports(A, 2, wire.Ready(), epoch(1, 0.1), epoch(2, 0.2)),
        bench.reports(A, 5, epoch(3, 0.9), wire.Leaving(done=True)),
    )
    events = bench.exit(A)
    assert kinds(events) == ["EpochFinished", "EpochFinished", "JobEnded", "WorkerLeft"]
    outcome = bench.brain.state.ended[A]
    assert (outcome.epochs, outcome.accuracy, outcome.reason) == (3, 0.9, "finished")


def test_of_a_job_that_failed_the_last_epochs_are_shown_too(bench: Bench) -> None:
    bench.keep(A, bench.reports(A, 1, JOINED, wire.Ready(), epoch(1), epoch(2)))
    on_launcher(bench.engine, Exited(bench.launch(A), Exit(code=1, at=0.0, cause="exited")))
    events = bench.turn()
    assert kinds(events).index("WorkerLost") > kinds(events).index("EpochFinished")
    assert bench.brain.state.ended[A].epochs == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda bench: b"[" * 100_000,
        lambda bench: b"\xff\x00\n",
        lambda bench: b'{"type": "Orders", "acknowledged": 1}',
        lambda bench: pack(bench.reports(B, 1, JOINED, epoch(7))),
        lambda bench: pack(bench.reports(A, 1, epoch(7), worker="n0/1")),
        lambda bench: pack(bench.reports(A, 1, epoch(7), worker="n0/x")),
        lambda bench: pack(bench.reports(A, 1, epoch(7), plan=0)),
        lambda bench: json.dumps({"type": "Reports", "job": A, "first": "x"}).encode(),
        lambda bench: pack(bench.reports(A, 1, *[epoch(7)] * 20)) + b" " * MOST_KEPT_BYTES,
    ],
)
def test_what_is_not_of_this_worker_is_refused_and_the_exit_is_told(
    make: Callable[[Bench], bytes], bench: Bench
) -> None:
    (bench.folder(A) / KEPT_REPORTS).write_bytes(make(bench))
    assert "EpochFinished" not in kinds(bench.exit(A))
    assert A in bench.brain.state.ended
    assert B in bench.brain.state.records
    assert bench.brain.state.records[B].epochs == 0


def test_a_link_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(pack(bench.reports(A, 1, JOINED, epoch(7))))
    (bench.folder(A) / KEPT_REPORTS).symlink_to(tmp_path / "other")
    assert "EpochFinished" not in kinds(bench.exit(A))
