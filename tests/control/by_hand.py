"""The live engine without real time: the test plays the workers and runs each turn of the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ones.control.clock import Clock
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import NOW, LiveJob
from ones.control.live.live_state import EngineDeps
from ones.control.readmodels.job_board import JobBoard
from ones.control.recorder import begin, recover
from ones.control.store import Store
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import Job, JobId
from ones.exec import Exit, Launch
from ones.launchers import Exited, Slot
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.policies import create
from ones.wire import Reports, pack
from ones.wire import messages as wire
from ones.wire.environment import KEPT_REPORTS
from tests.control.test_report_handlers import HEADER

JOINED = wire.Joined(dataset_size=10, base_batch=2, optimizer="sgd", parameter_bytes=8)
CLEAN = Exit(code=0, at=0.0, cause="exited")


class Still(LocalLauncher):
    """Starts nothing: the test plays the workers."""

    def __init__(self, root: Path, slots: list[Slot]) -> None:
        super().__init__(root, slots)
        self.started: list[Launch] = []
        self.stopped: list[str] = []

    def _launch(self, launch: Any) -> None:  # noqa: ANN401
        self.started.append(launch)
        self._launches.place(launch.id, launch.slots[0].rpartition("/")[0])

    def _stop(self, id: str, grace_seconds: float) -> None:
        self.stopped.append(id)


class ByHand:
    def __init__(self, root: Path, slots: int = 2, nodes: tuple[str, ...] = ("n0",)) -> None:
        """`slots`: of each node."""
        self.root = root
        self.store = Store(f"sqlite:///{root}/ones.db")
        begin(self.store, HEADER)
        self.scheduler, recorder = recover(self.store, HEADER, create("fifo"))
        self.recorder = recorder
        self.launcher = Still(root / "runs", [s for node in nodes for s in cpu_slots(node, slots)])
        self.launcher.open(lambda event: None)
        self.engine = LiveEngine(
            self.scheduler,
            EngineDeps(
                store=self.store,
                recorder=recorder,
                launcher=self.launcher,
                clock=Clock(),
                tokens=JobTokens(b"key"),
                url="http://127.0.0.1:1",
                checkpoints=str(root),
            ),
        )
        self.engine.next_tick = float("inf")  # no deadlines
        for node in nodes:
            self.engine.live.emit(ev.NodeUp(NOW, NodeId(node), slots))
        self.turn()
        self.board = JobBoard(self.store, lambda job: True, self.engine.cordons.reasons)

    def close(self) -> None:
        self.launcher.close(kill=True)
        self.store.close()

    def submit(self, job: JobId, *, gpus: int = 1, elastic: bool = True) -> None:
        submission = Submission(name=job, argv=("x",), cwd="/", elastic=elastic)
        self.engine.live.jobs[job] = LiveJob(job, submission)
        given = Job(id=job, submitted_at=0.0, min_gpus=gpus, max_gpus=gpus, elastic=elastic)
        self.engine.live.emit(ev.JobSubmitted(NOW, given))
        self.turn()

    def turn(self) -> list[ev.Event]:
        """Until there is nothing to do."""
        found = []
        live = self.engine.live
        while live.out or live.next_tasks or not live.inbox.empty():
            if not live.out:
                task = live.next_tasks.popleft() if live.next_tasks else live.inbox.get()
                task()
                continue
            delivered = self.engine.next_event(until=float("inf"))
            assert delivered is not None
            event = delivered.event
            found.append(event)
            self.recorder(*delivered)
            plan = self.scheduler.handle(event)
            if not plan.says_nothing:
                self.recorder(plan)
                self.engine.carry_out(plan)
        return found

    def launch(self, job: JobId) -> str:
        return next(iter(self.engine.live.jobs[job].workers))

    def plan(self, job: JobId) -> int:
        return next(iter(self.engine.live.jobs[job].workers.values())).plan

    def reports(self, job: JobId, first: int, *reports: wire.Report, **more: Any) -> Reports:
        where = next(iter(self.engine.live.jobs[job].workers.values())).name
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
        self.engine.on_launcher(Exited(self.launch(job), CLEAN))
        return self.turn()

    # what workers do

    def on(self, job: JobId) -> list[str]:
        """Names of its workers' GPUs."""
        return [worker.name for worker in self.engine.live.jobs[job].workers.values()]

    def say(self, job: JobId, *reports: wire.Report) -> None:
        """Each of its workers does."""
        for worker in list(self.engine.live.jobs[job].workers.values()):
            message = Reports(job=job, worker=worker.name, plan=worker.plan,
                              first=worker.heard + 1, reports=reports)  # fmt: skip
            self.engine.reports.handle(message, lambda problem: None)
            self.turn()
        self.turn()

    def die(
        self, job: JobId, gpu: str = "", *, code: int | None = 1, signal: int | None = None
    ) -> None:
        """The worker there, or the only one."""
        live = self.engine.live.jobs[job]
        worker = next(w for w in live.workers.values() if gpu in ("", w.name))
        exit = Exit(code=None if signal else code, signal=signal, at=0.0, cause="exited")
        self.engine.on_launcher(Exited(worker.launch, exit))
        self.turn()

    def is_used(self, gpu: str) -> bool:
        node, _, index = gpu.rpartition("/")
        place = Gpu(NodeId(node), int(index))
        return self.scheduler.state.cluster.state_of(place) is NodeState.UP
