"""`ones run`: runs one elastic job on the live engine; a schedule sets its workers by step.

The policy is scripted, nothing is stored, and workers report to a small HTTP server, so it needs
only the training library.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

from ones.config import ServiceSettings
from ones.control.clock import Clock
from ones.control.limits import Limits
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import NOW, LiveJob
from ones.control.live.live_state import EngineDeps
from ones.control.live.timeouts import Timeouts
from ones.control.persistence import Done
from ones.control.submission import Submission
from ones.control.tokens import KEY_BYTES, JobTokens
from ones.core.cluster import Cluster, NodeId
from ones.core.engine import drive
from ones.core.events import EpochFinished, Event, JobSubmitted, RescaleFailed, StepsDone
from ones.core.job import EndReason, Job
from ones.core.lifecycle import OrderKind
from ones.core.plan import Plan
from ones.core.scheduler import Scheduler
from ones.core.state import State
from ones.errors import WorldError
from ones.exec import Exit
from ones.lab.scripted_policy import JOB, RETRIES, SchedulePhase, ScriptedPolicy
from ones.lab.worker_server import WorkerServer
from ones.launchers import Exited, Launcher, LauncherEvent, Started
from ones.launchers.devices import cpu_slots
from ones.launchers.local import NODE, LocalLauncher
from ones.wire import Reports
from ones.wire.messages import End, Epoch, Leaving, Report, Switched

OUTPUT_SECONDS = 0.1


@dataclass(slots=True)
class RunOutcome:
    """Switches, epochs and exits of a run, for tests and benchmarks."""

    switches: list[tuple[Reports, Switched]] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    exits: dict[str, Exit] = field(default_factory=dict)  # launch -> how it ended
    done: bool = False


class MemoryRecorder:
    """Recorder and store of a run that is not resumed: stores nothing and calls `done` at once."""

    def __init__(self, on_entry: Callable[[Event | Plan], None]) -> None:
        self.touched: set[str] = set()
        self._on_entry = on_entry

    def __call__(
        self, entry: Event | Plan, rows: Sequence[object] = (), done: Done | None = None
    ) -> None:
        self.touched.add(JOB)
        self._on_entry(entry)
        self.write(done=done)

    def write(
        self,
        entries: Sequence[object] = (),
        operations: Sequence[object] = (),
        done: Done | None = None,
    ) -> None:
        if done is not None:
            done(None)

    def flush(self) -> None:
        pass


class ElasticRun:
    """One elastic job. `run` runs the engine in its thread and returns when the job has ended.

    `unix`: the Unix user that it runs as, if the launcher runs jobs as users.
    """

    def __init__(  # noqa: PLR0913
        self,
        argv: Sequence[str],
        schedule: Sequence[SchedulePhase],
        *,
        slots: int,
        directory: Path,
        exact: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        on_event: Callable[[str], None] = lambda text: None,
        launcher: Launcher | None = None,
        unix: str = "",
        shows_output: bool = True,
    ) -> None:
        self.on_event, self._shows_output = on_event, shows_output
        self.outcome = RunOutcome()
        self.tokens = JobTokens(secrets.token_bytes(KEY_BYTES))
        self.limits = Limits.of(ServiceSettings())
        self.policy, self._exact = ScriptedPolicy(schedule), exact
        self.server = WorkerServer(self)
        self.launcher = launcher or LocalLauncher(directory / "launcher", cpu_slots(NODE, slots))
        variables = dict(os.environ if env is None else env)
        if exact:
            due = [f"{plan}:{phase.step}" for plan, phase in enumerate(self.policy.phases, 1)]
            variables["ONES_EXACT"] = ",".join(due)
        self._job = Job(
            id=JOB,
            submitted_at=NOW,
            command=tuple(argv),
            requested_gpus=schedule[0].workers,
            requested_batch=schedule[0].batch,
            retries=RETRIES,
        )
        self._submission = Submission(
            name=JOB, argv=tuple(argv), cwd=str(cwd or Path.cwd()), env=variables, elastic=True,
            unix=unix,
        )  # fmt: skip
        waiting = Timeouts(join_seconds=inf)
        self._scheduler = Scheduler(Cluster(), self.policy)
        self._recorder = MemoryRecorder(self._on_entry)
        self.engine = LiveEngine(
            self._scheduler,
            EngineDeps(
                store=self._recorder,
                recorder=self._recorder,
                launcher=self.launcher,
                clock=Clock(),
                tokens=self.tokens,
                url=self.server.url,
                checkpoints=str(directory / "checkpoints"),
                # workers join, and with an exact schedule have their Switch, long before its step
                timeouts=replace(waiting, switch_seconds=inf) if exact else waiting,
                on_report=self._on_report,
                may_switch=self._may_switch,
            ),
            self._stop_when_over,
        )
        self._launches: dict[str, str] = {}  # launch -> worker, of processes that started
        self._over = threading.Event()
        self._plan = 0  # the newest

    def run(self) -> RunOutcome:
        self.server.open()
        self.launcher.open(self._on_launcher)
        output = threading.Thread(target=self._show_output, daemon=True)
        if self._shows_output:
            output.start()
        try:
            self.engine.live.post(self._submit)
            drive(self._scheduler, self.engine, self._recorder)
        finally:
            self.launcher.close(kill=True)
            self.server.close()
            self._over.set()
            if self._shows_output:
                output.join()
        return self.outcome

    def interrupt(self) -> None:
        """End the run and its workers. For any thread."""
        self.engine.stop()

    def finish(self) -> None:
        """Ends the loop of the script in all workers, as for a job that has converged. For any
        thread."""
        self.engine.live.post(self._finish)

    def _finish(self) -> None:
        job = self.engine.live.jobs.get(JOB)
        for launch in list(job.workers) if job is not None else ():
            self.engine.live.mailbox.put(launch, End(EndReason.FINISHED.value, self._plan + 1))

    def report(self, message: Reports, done: Done) -> None:
        self.engine.report(message, done)

    def _submit(self) -> None:
        self.engine.nodes.slot_up(NodeId(NODE))
        self.engine.live.jobs[JOB] = LiveJob(JOB, self._submission)
        self.engine.live.emit(JobSubmitted(NOW, self._job))

    def _stop_when_over(self, state: State, jobs: set[str]) -> None:
        """Stop the engine when the job has ended and its last worker has left."""
        if JOB in state.ended and JOB not in self.engine.live.jobs:
            self.engine.stop()

    # called in the engine's thread

    def _on_entry(self, entry: Event | Plan) -> None:
        if isinstance(entry, Plan):
            self._plan = entry.number
        elif isinstance(entry, RescaleFailed):
            plan = entry.generation.plan
            self.on_event(f"plan {plan} failed: {entry.reason}")
        elif isinstance(entry, StepsDone | EpochFinished):
            self.engine.live.post(self._switch_if_due)  # after the event was applied

    def _may_switch(self, plan: int) -> bool:
        """Whether the plan's step is reached; with an exact schedule the workers wait for it."""
        record = self._scheduler.state.records[JOB]
        return self._exact or self.policy.may_switch(plan, record.steps + record.epoch_steps)

    def _switch_if_due(self) -> None:
        job = self.engine.live.jobs.get(JOB)
        if job is not None:
            self.engine.runner.publish_if_all_joined(job)

    def _on_report(self, message: Reports, report: Report) -> None:
        outcome = self.outcome
        match report:
            case Epoch() if report.epoch > len(outcome.epochs):  # else reported twice
                outcome.epochs.append(report)
            case Switched():
                self._switched(message, report)
            case Leaving():
                outcome.done |= report.done

    def _switched(self, message: Reports, report: Switched) -> None:
        order = self.engine.live.order(self.engine.live.jobs[JOB])
        is_start = order is not None and order.kind is OrderKind.START
        now = len(report.members)
        if message.incarnation:
            self.on_event(f"step {report.step}: a worker was lost, {now} continue")
        elif self.outcome.switches and not is_start:
            before, pause = len(self.outcome.switches[-1][1].members), report.pause_seconds
            self.on_event(
                f"step {report.step}: {before} -> {now} workers, pause {1000 * pause:.1f} ms"
            )
        self.outcome.switches.append((message, report))

    def _exited(self, event: Exited) -> None:
        self.outcome.exits[event.id] = event.exit
        if not (event.exit.clean or self.outcome.done):
            self.on_event(f"{_worker_of(event.id)} ended: {event.exit.describe()}")

    # called in other threads

    def _on_launcher(self, event: LauncherEvent) -> None:
        if isinstance(event, Started):
            self._launches[event.id] = _worker_of(event.id)
        elif isinstance(event, Exited):
            self.engine.live.post(partial(self._exited, event))
        self.engine.on_launcher(event)

    def _show_output(self) -> None:
        """Print the output of the workers, line by line."""
        offsets: dict[str, int] = {}
        begun: dict[str, str] = {}  # lines without an end
        last = False
        while not last:
            last = self._over.wait(OUTPUT_SECONDS)
            for launch, worker in list(self._launches.items()):
                chunk = self.launcher.logs(JOB, launch, offsets.get(launch, 0), 1 << 20)
                if chunk.data:
                    offsets[launch] = chunk.next
                    text = begun.pop(launch, "") + chunk.data.decode(errors="replace")
                    *lines, begun[launch] = text.split("\n")
                    _print(worker, lines)
        for launch, rest in begun.items():
            if rest:
                _print(self._launches[launch], [rest])


def _worker_of(launch: str) -> str:
    """The worker of a launch id.

    >>> _worker_of("run~3~local.1")
    'local/1'
    """
    return "/".join(launch.rpartition("~")[2].rsplit(".", maxsplit=1))


def _print(worker: str, lines: list[str]) -> None:
    mark = "" if worker == f"{NODE}/0" else f"[{worker}] "
    with contextlib.suppress(OSError):
        for line in lines:
            sys.stdout.write(f"{mark}{line}\n")
        sys.stdout.flush()


def check_outcome(outcome: RunOutcome) -> None:
    """Raises WorldError if the job did not finish."""
    if not outcome.done:
        ends = [exit.describe() for exit in outcome.exits.values()]
        if ends and all(exit.code == 0 for exit in outcome.exits.values()):
            raise WorldError("the script ended before its epochs: does it call ones.join?")
        raise WorldError(f"the job did not finish: {ends[-1] if ends else 'no worker started'}")
