"""One seed: the controller runs, crashes and restarts until all jobs have ended; then checks."""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path

from ones.control.archive import HEADER
from ones.control.controller import Controller, Options
from ones.control.store import Store
from ones.control.tokens import JobTokens
from ones.core.state import State
from ones.lab.faults.checks import check_counts, check_end, check_recovery
from ones.lab.faults.context import ControllerInstance, CrashedError, FaultContext
from ones.lab.faults.disk import SimulatedDisk, SimulatedWriter
from ones.lab.faults.fixed_script import FixedScript
from ones.lab.faults.hostile_workers import HostileWorkers
from ones.lab.faults.inbox import SimulatedClock, SimulatedInbox
from ones.lab.faults.job import SimulatedJob
from ones.lab.faults.launcher import SimulatedLauncher, SimulatedProcess
from ones.lab.faults.network import SimulatedNetwork, SimulatedServer
from ones.lab.faults.scenario import KINDS, TIMEOUTS, FaultInjector, Scenario, draw_scenario
from ones.lab.faults.users import SimulatedUsers
from ones.lab.faults.worker import SimulatedWorker
from ones.launchers import Launch
from ones.policies import create
from ones.runlog import Header, decode

#: after the last fault, all jobs must have ended within this virtual time
HORIZON_SECONDS = 3600.0
INSPECT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class FaultRunResult:
    seed: int
    policy: str
    virtual_seconds: float
    faults: Counter[str]
    violations: tuple[str, ...]
    digest: str  # of the trace; equal for two runs of a seed
    trace: tuple[str, ...] = ()


class _OverdueError(BaseException):
    """The jobs have not ended in time."""


def run_seed(
    seed: int,
    *,
    policy: str | None = None,
    kinds: Collection[str] = tuple(KINDS),
    keep_trace: bool = False,
    inspect: Callable[[State], None] = lambda state: None,
    launcher: type[SimulatedLauncher] = SimulatedLauncher,
    controller: type[Controller] = Controller,
) -> FaultRunResult:
    """Runs one seed. `inspect` gets the state whenever the controller is idle. Tests pass a broken
    `launcher` or `controller`, which the checks must find."""
    context = FaultContext(seed, keep_trace=keep_trace)
    run = _Run(context, draw_scenario(context.rng, kinds, policy), inspect, launcher, controller)
    with redirect_stdout(StringIO()):
        run.run()
    return FaultRunResult(
        seed,
        run.scenario.policy,
        context.now,
        context.faults,
        tuple(context.violations),
        context.digest,
        tuple(context.trace),
    )


class _Run:
    def __init__(
        self,
        context: FaultContext,
        scenario: Scenario,
        inspect: Callable[[State], None],
        launcher: type[SimulatedLauncher],
        controller: type[Controller],
    ) -> None:
        self.context, self.scenario, self._inspect = context, scenario, inspect
        self._make_controller = controller
        self.disk = SimulatedDisk(context)
        self.network = SimulatedNetwork(context)
        self.launcher = launcher(context, scenario.nodes, self._spawn)
        self.users = SimulatedUsers(
            context, self.network, {spec.number: spec for _, spec in scenario.jobs}
        )
        self.jobs: dict[str, SimulatedJob] = {}
        self._processes: list[SimulatedWorker | FixedScript] = []
        self._hostile = HostileWorkers(context, self.network, until=scenario.calm_at)
        self._crashes_left = scenario.crashes
        self._inspected_at = 0.0
        self._injector = FaultInjector(
            context, scenario, self.disk, self.network, self.launcher, self.users, self._kill_one
        )

    def run(self) -> None:
        scenario, context = self.scenario, self.context
        context.note(
            f"{scenario.policy}, {scenario.mechanism}, nodes {scenario.nodes},"
            f" faults {sorted(scenario.kinds)}, calm at {scenario.calm_at:.0f}"
        )
        for at, spec in scenario.jobs:
            context.note(f"job {spec.number} at {at:.1f}: {spec}")
        self._injector.begin()
        context.after(5.0, self._stop_when_over)
        while self._run_instance():
            pass

    # the controller

    def _run_instance(self) -> bool:
        """Starts the controller and runs it. False: all jobs have ended."""
        context, instance = self.context, ControllerInstance()
        context.instance = instance
        writers: list[SimulatedWriter] = []
        controller: Controller | None = None

        def writer(commit: object) -> SimulatedWriter:
            writers.append(SimulatedWriter(context, self.disk, instance, commit))  # type: ignore[arg-type]
            return writers[-1]

        self._schedule_crash()
        context.note("the controller starts")
        try:
            store = Store(self.disk.engine, writer=writer)
            controller = self._make_controller(
                store, JobTokens(b"key"), self.launcher, self._options()
            )
            controller.load("http://controller", "/checkpoints")
            self.network.server = SimulatedServer(context, controller, instance)
            context.note("the controller runs")
            controller.run()
        except CrashedError as crash:
            self._crashed(instance)
            context.note(f"the controller has crashed: {crash}")
            self._check_recovery(controller, writers)
            context.run(context.now + context.rng.uniform(0.5, 60.0))
            return True
        except _OverdueError:
            assert controller is not None
            for job in controller.scheduler.state.records.values():
                context.violation(f"{job.id} did not end: {job.phase}, {job.note}")
            for id in self.launcher.living():
                context.violation(f"process {id} did not end")
            for request in self.users.pending:
                context.violation(f"{request} had no answer")
            return False
        except Exception as problem:
            place = traceback.extract_tb(problem.__traceback__)[-1]
            what = f"{type(problem).__name__}: {problem}"[:300]
            where = f"{Path(place.filename).name}:{place.lineno}"
            context.violation(f"the controller stopped: {what} ({where})")
            return False
        context.crash_after(None)
        store.flush()
        self._check_recovery(controller, writers)
        check_end(context, self.disk, controller, self.users, self.jobs, self.launcher)
        self._crashed(instance)
        return False

    def _schedule_crash(self) -> None:
        rng = self.context.rng
        if self._crashes_left and self.context.now < self.scenario.calm_at:
            self._crashes_left -= 1
            early = rng.random() < 0.5
            uses = math.exp(rng.uniform(0.0, 6.5)) if early else rng.uniform(1, 4000)
            self.context.crash_after(round(uses))
        else:
            self.context.crash_after(None)

    def _crashed(self, instance: ControllerInstance) -> None:
        instance.alive = False
        self.context.crash_after(None)
        self.disk.cut()
        self.launcher.crashed()
        server, self.network.server = self.network.server, None
        if server is not None:
            server.hang_up()
        if "clock" in self.scenario.kinds and self.context.rng.random() < 0.5:
            self.context.fault("clock", "set back")
            self.context.set_wall_back(self.context.rng.uniform(0.0, 1000.0))

    def _options(self) -> Options:
        return Options(
            policy=self.scenario.policy,
            mechanism=self.scenario.mechanism,
            timeouts=TIMEOUTS,
            clock=partial(SimulatedClock, self.context),
            inbox=lambda: SimulatedInbox(self.context, self._idle),
            tail=lambda jobs, workers: self.scenario.tail,
        )

    # checks on the way

    def _check_recovery(
        self, controller: Controller | None, writers: list[SimulatedWriter]
    ) -> None:
        scheduler = getattr(controller, "scheduler", None)
        rows = self.disk.query(f"SELECT value FROM meta WHERE key = '{HEADER}'")
        if controller is None or scheduler is None or not rows:
            return
        header = decode(rows[0][0])
        assert isinstance(header, Header)
        check_counts(self.context, controller, self.jobs)
        check_recovery(
            self.context,
            self.disk,
            scheduler,
            writers[0],
            header,
            partial(create, self.scenario.policy),
        )

    def _idle(self) -> None:
        """Checks invariants when the controller has handled everything."""
        if self.context.now - self._inspected_at < INSPECT_SECONDS or self.network.server is None:
            return
        self._inspected_at = self.context.now
        controller = self.network.server.controller
        check_counts(self.context, controller, self.jobs)
        try:
            self._inspect(controller.scheduler.state)
        except AssertionError as problem:
            self.context.violation(f"an invariant of the state does not hold: {problem}")

    def _stop_when_over(self) -> None:
        context, server = self.context, self.network.server
        context.after(5.0, self._stop_when_over)
        if server is not None and context.now > self.scenario.calm_at:
            controller = server.controller
            records, jobs = controller.scheduler.state.records, controller.engine.live.jobs
            missing = len(self.users.acknowledged) < len(self.scenario.jobs)
            rest = records or jobs or missing or self.users.pending or self.launcher.living()
            if not rest:
                controller.engine.stop()
            elif context.now > self.scenario.calm_at + HORIZON_SECONDS:
                raise _OverdueError
            elif context.now > self.scenario.calm_at + HORIZON_SECONDS / 2:
                self._cancel_hostile(records)

    def _cancel_hostile(self, unfinished: Collection[str]) -> None:
        """Reports of a job that has sent wrong report numbers are ignored, so it runs until its
        user cancels it."""
        for id, job in self.jobs.items():
            if job.spec.is_hostile and id in unfinished and id not in self.users.cancelled:
                self.users.cancel(id)

    # processes

    def _spawn(self, launch: Launch) -> SimulatedProcess:
        spec = self.users.specs[int(launch.argv[-1])]
        job = self.jobs.get(launch.job)
        if job is None:
            job = self.jobs[launch.job] = SimulatedJob(self.context, launch.job, spec)
        process: SimulatedWorker | FixedScript
        if "ONES_CONTROLLER" in launch.env and spec.joins:
            process = SimulatedWorker(self.context, self.network, self.launcher, job, launch)
            if spec.is_hostile:
                self._hostile.add(process)
        else:
            process = FixedScript(self.context, self.launcher, job, launch)
        self._processes.append(process)
        return process

    def _kill_one(self) -> None:
        self._processes = [process for process in self._processes if process.alive]
        if self._processes:
            self.context.fault("worker-death", "killed")
            self.context.rng.choice(self._processes).die()
