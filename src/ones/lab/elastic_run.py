"""`ones run`: one elastic job by a schedule of steps instead of a policy.

The same launcher and the same wire protocol as the service, so tests and benchmarks of
the training library need no service.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ones.errors import InvalidSettingError, WorldError
from ones.exec import Exit
from ones.lab.worker_server import WorkerServer
from ones.launchers import Exited, Launch, Launcher, LauncherEvent
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.wire import Reports
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import (
    End,
    Epoch,
    Hung,
    Joined,
    Leaving,
    Member,
    Order,
    Report,
    Steps,
    StoreStarted,
    Switch,
    Switched,
    SwitchFailed,
    Withdraw,
)

JOB = "run"
_RETRIES = 3


@dataclass(frozen=True, slots=True)
class SchedulePhase:
    step: int  # from here on
    workers: int
    batch: int | None = None  # global; None: the script's own


def parse_schedule(text: str, slots: int) -> tuple[SchedulePhase, ...]:
    """`0:1,50:2,120:4x256`: from step 50 on 2 workers; from 120 on 4, with a batch of 256."""
    phases = []
    for part in text.split(","):
        try:
            step, _, rest = part.strip().partition(":")
            workers, _, batch = rest.partition("x")
            phase = SchedulePhase(int(step), int(workers), int(batch) if batch else None)
        except ValueError:
            raise InvalidSettingError(
                f"schedule {text!r}: {part!r} is not STEP:WORKERS or STEP:WORKERSxBATCH"
            ) from None
        if not 1 <= phase.workers <= slots:
            raise InvalidSettingError(f"schedule {text!r}: {phase.workers} workers, {slots} slots")
        if phase.batch is not None and phase.batch < phase.workers:
            raise InvalidSettingError(f"schedule {text!r}: {part!r} leaves a worker no sample")
        phases.append(phase)
    if phases[0].step != 0:
        raise InvalidSettingError(f"schedule {text!r} does not begin at step 0")
    if any(a.step >= b.step for a, b in itertools.pairwise(phases)):
        raise InvalidSettingError(f"schedule {text!r}: steps do not increase")
    return tuple(phases)


@dataclass(slots=True)
class RunOutcome:
    """What happened, for tests and benchmarks."""

    switches: list[tuple[Reports, Switched]] = field(default_factory=list)
    failures: list[SwitchFailed] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    exits: dict[str, Exit] = field(default_factory=dict)  # launch -> how it ended
    described: Joined | None = None
    done: bool = False


class ElasticRun:
    """`run` returns when the job is over; events are handled one at a time, in its thread."""

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
    ) -> None:
        self._argv, self._schedule = tuple(argv), tuple(schedule)
        self._directory, self._cwd = directory, cwd or Path.cwd()
        self._env = dict(os.environ if env is None else env)
        self._say = on_event
        if exact:
            due = [f"{number}:{phase.step}" for number, phase in enumerate(schedule, 1)]
            self._env["ONES_EXACT"] = ",".join(due)
        self._token = secrets.token_urlsafe(16)
        self._slots = cpu_slots("local", slots)
        self.launcher = launcher or LocalLauncher(directory / "launcher", self._slots)
        self._server = WorkerServer(
            self._token, on_report=self._on_report, has_place=self._has_place
        )
        self._events: queue.SimpleQueue[LauncherEvent | tuple[Reports, Report] | None]
        self._events = queue.SimpleQueue()
        self.outcome = RunOutcome()
        self.steps = 0
        self._epoch_steps = 0
        self._plan = 0
        self._phase = -1
        self._members: tuple[str, ...] = ()  # of the configuration in force
        self._wanted: tuple[str, ...] = ()  # of the one that is on its way
        self._joined: set[str] = set()
        self._launches: dict[str, str] = {}  # worker -> its living launch
        self._by_launch: dict[str, str] = {}
        self._fenced: set[str] = set()
        self._is_ordered = self._is_settled = False
        self._is_postponed = False
        self._ending = False
        self._retries = 0
        self._launched = 0

    # from other threads

    def _on_report(self, message: Reports, report: Report) -> None:
        self._events.put((message, report))

    def _has_place(self, worker: str) -> bool:
        return worker in self._launches and worker not in self._fenced

    def worker_pid(self, worker: str) -> int | None:
        process = self.launcher.running().get(self._launches.get(worker, ""))
        return None if process is None else process.pid

    @property
    def workers(self) -> tuple[str, ...]:
        return self._members

    def order_all(self, order: Order) -> None:
        """By hand, instead of the schedule."""
        self._tell(set(self._launches), order)

    def fence(self, worker: str) -> None:
        """As if the worker had been given up: it is told so and exits."""
        self._fenced.add(worker)
        self._server.wake()

    def close_server(self) -> None:
        """As if the controller had died: training goes on."""
        self._server.close()

    def interrupt(self) -> None:
        self._events.put(None)

    # the loop

    def run(self) -> RunOutcome:
        self._server.open()
        self.launcher.open(self._events.put)
        output = threading.Thread(target=self._show_output, daemon=True)
        try:
            self._next_phase()
            output.start()
            while self._launches or not self._ending:
                event = self._events.get()
                if event is None:
                    break
                if isinstance(event, Exited):
                    self._exited(event)
                elif isinstance(event, tuple):
                    self._hear(*event)
        finally:
            self.launcher.close(kill=True)
            self._server.close()
            self._launches.clear()  # also those that were interrupted: nothing more is to be shown
            self._ending = True
            if output.is_alive():
                output.join()
        return self.outcome

    def _next_phase(self) -> None:
        """Start those who will come, so that they are warm when their step is there."""
        if self._phase + 1 < len(self._schedule):
            self._phase += 1
            self._begin()

    def _begin(self) -> None:
        phase = self._schedule[self._phase]
        stay = [worker for worker in self._members if worker in self._launches][: phase.workers]
        free = [slot.id for slot in self._slots if slot.id not in self._launches]
        if len(stay) + len(free) < phase.workers:
            self._is_postponed = True  # until those who are leaving have left
            return
        self._is_postponed = False
        self._plan = max(self._plan + 1, self._phase + 1)
        self._wanted = (*stay, *free[: phase.workers - len(stay)])
        self._is_ordered = self._is_settled = False
        for worker in self._wanted:
            if worker not in self._launches:
                self._launch(worker)
        self._order_if_due()

    def _launch(self, worker: str) -> None:
        self._launched += 1
        launch = f"{self._plan}-{self._launched}"
        self._server.forget(worker)
        self._launches[worker] = launch
        self._by_launch[launch] = worker
        self._joined.discard(worker)
        environment = WorkerEnvironment(
            controller=self._server.url,
            token=self._token,
            job=JOB,
            worker=worker,
            plan=self._plan,
            run_dir="",
            job_dir="",
            checkpoints=str(self._directory / "checkpoints"),
        )
        self.launcher.launch(
            Launch(
                id=launch,
                job=JOB,
                slots=(worker,),
                argv=self._argv,
                cwd=str(self._cwd),
                env={**self._env, **environment.to_env()},
                zygote=True,
            )
        )

    def _order_if_due(self) -> None:
        if self._is_postponed:
            return
        phase, described = self._schedule[self._phase], self.outcome.described
        exact = "ONES_EXACT" in self._env
        if self._is_ordered or described is None or not self._joined >= set(self._wanted):
            return
        if self.steps < phase.step and not exact:
            return
        self._is_ordered = True
        batch = phase.batch or described.base_batch
        small, more = divmod(batch, len(self._wanted))
        members = tuple(
            Member(worker=worker, batch=small + (rank < more))
            for rank, worker in enumerate(self._wanted)
        )
        self._tell(
            {*self._members, *self._wanted},
            Switch(plan=self._plan, members=members, batch=batch, base_batch=described.base_batch),
        )

    def _tell(self, workers: set[str], order: Order) -> None:
        for worker in workers:
            self._server.order(worker, order)

    # what happens

    def _hear(self, message: Reports, report: Report) -> None:
        match report:
            case Joined():
                self.outcome.described = self.outcome.described or report
                self._joined.add(message.worker)
                self._order_if_due()
            case Steps():
                self.steps = max(self.steps, self._epoch_steps + report.steps)
                self._order_if_due()
            case Epoch() if report.epoch > len(self.outcome.epochs):  # else told twice
                self._epoch_steps += report.steps
                self.steps = self._epoch_steps
                self.outcome.epochs.append(report)
                self._order_if_due()
            case Switched():
                self._switched(message, report)
            case SwitchFailed() if report.plan == self._plan and not self._is_settled:
                self.outcome.failures.append(report)
                self._withdraw(report.reason)
            case StoreStarted():
                self._server.store_is(report.address)
            case Hung():
                launch = self._launches.get(report.worker)
                if launch is not None:
                    self.launcher.stop(launch, 0.0)
            case Leaving() if report.done:
                self.outcome.done = self._ending = True
                self._tell(set(self._launches), End("finished", self._plan + 1))
                for worker in set(self._launches) - set(self._members):
                    self.launcher.stop(self._launches[worker], 10.0)

    def _switched(self, message: Reports, report: Switched) -> None:
        self.outcome.switches.append((message, report))
        self.steps = max(self.steps, report.step)
        before, self._members = self._members, report.members
        if before and message.incarnation == 0:
            self._say(
                f"step {report.step}: {len(before)} -> {len(report.members)} workers,"
                f" pause {1000 * report.pause_seconds:.1f} ms"
            )
        elif before:
            self._say(f"step {report.step}: a worker was lost, {len(report.members)} go on")
        if message.plan == self._plan and not self._is_settled:
            self._is_settled = True
            self._next_phase()

    def _withdraw(self, reason: str) -> None:
        """The plan did not come together: let go of it, and try again."""
        self._say(f"plan {self._plan} did not come together: {reason}")
        self._retries += 1
        for worker in set(self._wanted) - set(self._members):
            if worker in self._launches:
                self.launcher.stop(self._launches[worker], 5.0)
        self._plan += 1
        self._tell(set(self._members), Withdraw(self._plan, self._plan - 1))
        self._wanted = ()
        if self._retries <= _RETRIES:
            self._begin()

    def _exited(self, event: Exited) -> None:
        self.outcome.exits[event.id] = event.exit
        worker = self._by_launch.get(event.id)
        if worker is None or self._launches.get(worker) != event.id:
            return
        del self._launches[worker]
        was_member, was_wanted = worker in self._members, worker in self._wanted
        self._members = tuple(w for w in self._members if w != worker)
        if self._ending:
            return
        if self._is_postponed:
            self._begin()
        if not event.exit.clean:
            self._say(f"{worker} ended: {event.exit.describe()}")
        if not self._launches or (was_member and not self._members):
            if event.exit.clean or self._retries >= _RETRIES:
                self._ending = True
                return
            self._retries += 1
            self._begin()
        elif was_wanted and not was_member and not self._is_ordered:
            self._retries += 1
            if self._retries <= _RETRIES:
                self._launch(worker)
        # else the others notice: they give up the plan, or go on without it

    def _show_output(self) -> None:
        """What the workers print, line by line, as it comes."""
        offsets: dict[str, int] = {}
        begun: dict[str, str] = {}  # lines without an end
        last = False
        while not last:
            last = self._ending and not self._launches
            for launch, worker in list(self._by_launch.items()):
                chunk = self.launcher.logs(JOB, launch, offsets.get(launch, 0), 1 << 20)
                if chunk.data:
                    offsets[launch] = chunk.next
                    text = begun.pop(launch, "") + chunk.data.decode(errors="replace")
                    *lines, begun[launch] = text.split("\n")
                    self._print(worker, lines)
            time.sleep(0.1)
        for launch, rest in begun.items():
            if rest:
                self._print(self._by_launch[launch], [rest])

    def _print(self, worker: str, lines: list[str]) -> None:
        mark = "" if worker == self._slots[0].id else f"[{worker}] "
        with contextlib.suppress(OSError):
            for line in lines:
                sys.stdout.write(f"{mark}{line}\n")
            sys.stdout.flush()


def check_outcome(outcome: RunOutcome) -> None:
    """A job that did not end well is an error of the script or of the machine."""
    if not outcome.done:
        ends = [exit.describe() for exit in outcome.exits.values()]
        if ends and all(exit.code == 0 for exit in outcome.exits.values()):
            raise WorldError("the script ended before its epochs: does it call ones.join?")
        raise WorldError(f"the job did not finish: {ends[-1] if ends else 'no worker started'}")
