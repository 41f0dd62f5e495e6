"""One seed: the controller runs, crashes and starts again until all is over; then the checks."""

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
from ones.lab.faults.disk import SimulatedDisk, SimulatedWriter
from ones.lab.faults.hostile import mutated
from ones.lab.faults.inbox import SimulatedClock, SimulatedInbox
from ones.lab.faults.kinds import KINDS
from ones.lab.faults.launcher import Running, SimulatedLauncher
from ones.lab.faults.network import Server, SimulatedNetwork
from ones.lab.faults.scenario import TIMEOUTS, Scenario, Trouble, scenario
from ones.lab.faults.training import Training
from ones.lab.faults.users import Users
from ones.lab.faults.worker import FixedScript, SimulatedWorker
from ones.lab.faults.world import CrashedError, Life, World
from ones.launchers import Launch
from ones.policies import create
from ones.runlog import Header, decode

#: after the last fault, all jobs must have ended within this virtual time
HORIZON_SECONDS = 3600.0
LOOK_SECONDS = 20.0
HOSTILE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    policy: str
    virtual_seconds: float
    faults: Counter[str]
    violations: tuple[str, ...]
    digest: str  # of the trace: two runs of a seed have the same
    trace: tuple[str, ...] = ()


class _OverdueError(BaseException):
    """It has not come to an end in time."""


def run_seed(
    seed: int,
    *,
    policy: str | None = None,
    kinds: Collection[str] = tuple(KINDS),
    keep_trace: bool = False,
    inspect: Callable[[State], None] = lambda state: None,
    launcher: type[SimulatedLauncher] = SimulatedLauncher,
    controller: type[Controller] = Controller,
) -> Result:
    """`inspect` is given the state whenever the controller rests. `launcher` and `controller` can
    be broken ones: the checks must find it."""
    world = World(seed, keep_trace=keep_trace)
    run = _Run(world, scenario(world.dice, kinds, policy), inspect, launcher, controller)
    with redirect_stdout(StringIO()):
        run.until_over()
    return Result(
        seed,
        run.scenario.policy,
        world.now,
        world.faults,
        tuple(world.violations),
        world.digest,
        tuple(world.trace),
    )


class _Run:
    def __init__(
        self,
        world: World,
        scenario: Scenario,
        inspect: Callable[[State], None],
        launcher: type[SimulatedLauncher],
        controller: type[Controller],
    ) -> None:
        self.world, self.scenario, self._inspect = world, scenario, inspect
        self._make_controller = controller
        self.disk = SimulatedDisk(world)
        self.network = SimulatedNetwork(world)
        self.launcher = launcher(world, scenario.nodes, self._spawn)
        self.users = Users(world, self.network, {spec.number: spec for _, spec in scenario.jobs})
        self.trainings: dict[str, Training] = {}
        self._processes: list[SimulatedWorker | FixedScript] = []
        self._heard: dict[str, list[bytes]] = {}  # token of a hostile job -> its messages
        self._attacking = False
        self._crashes_left = scenario.crashes
        self._looked_at = 0.0
        self._trouble = Trouble(
            world, scenario, self.disk, self.network, self.launcher, self.users, self._kill_one
        )

    def until_over(self) -> None:
        scenario, world = self.scenario, self.world
        world.note(
            f"{scenario.policy}, {scenario.mechanism}, nodes {scenario.nodes},"
            f" faults {sorted(scenario.kinds)}, calm at {scenario.calm_at:.0f}"
        )
        for at, spec in scenario.jobs:
            world.note(f"job {spec.number} at {at:.1f}: {spec}")
        self._trouble.begin()
        world.after(5.0, self._look_for_end)
        while self._one_life():
            pass

    # the controller

    def _one_life(self) -> bool:
        """Start the controller and run it. False: all is over."""
        world, life = self.world, Life()
        world.life = life
        writers: list[SimulatedWriter] = []
        controller: Controller | None = None

        def writer(commit: object) -> SimulatedWriter:
            writers.append(SimulatedWriter(world, self.disk, life, commit))  # type: ignore[arg-type]
            return writers[-1]

        self._arm()
        world.note("the controller starts")
        try:
            store = Store(self.disk.engine, writer=writer)
            controller = self._make_controller(
                store, JobTokens(b"key"), self.launcher, self._options()
            )
            controller.load("http://controller", "/checkpoints")
            self.network.server = Server(world, controller, life)
            world.note("the controller runs")
            controller.run()
        except CrashedError as crash:
            self._crashed(life)
            world.note(f"the controller has crashed: {crash}")
            self._compare(controller, writers)
            world.run(world.now + world.dice.uniform(0.5, 60.0))
            return True
        except _OverdueError:
            assert controller is not None
            for job in controller.brain.state.records.values():
                world.violation(f"{job.id} did not end: {job.phase}, {job.note}")
            for id in self.launcher.living():
                world.violation(f"process {id} did not end")
            for request in self.users.pending:
                world.violation(f"{request} had no answer")
            return False
        except Exception as problem:
            place = traceback.extract_tb(problem.__traceback__)[-1]
            what = f"{type(problem).__name__}: {problem}"[:300]
            where = f"{Path(place.filename).name}:{place.lineno}"
            world.violation(f"the controller stopped: {what} ({where})")
            return False
        world.arm(None)
        store.flush()
        self._compare(controller, writers)
        check_end(world, self.disk, controller, self.users, self.trainings, self.launcher)
        self._crashed(life)
        return False

    def _arm(self) -> None:
        dice = self.world.dice
        if self._crashes_left and self.world.now < self.scenario.calm_at:
            self._crashes_left -= 1
            early = dice.random() < 0.5
            uses = math.exp(dice.uniform(0.0, 6.5)) if early else dice.uniform(1, 4000)
            self.world.arm(round(uses))
        else:
            self.world.arm(None)

    def _crashed(self, life: Life) -> None:
        life.alive = False
        self.world.arm(None)
        self.disk.cut()
        self.launcher.crashed()
        server, self.network.server = self.network.server, None
        if server is not None:
            server.hang_up()
        if "clock" in self.scenario.kinds and self.world.dice.random() < 0.5:
            self.world.fault("clock", "set back")
            self.world.set_wall_back(self.world.dice.uniform(0.0, 1000.0))

    def _options(self) -> Options:
        return Options(
            policy=self.scenario.policy,
            mechanism=self.scenario.mechanism,
            timeouts=TIMEOUTS,
            clock=partial(SimulatedClock, self.world),
            inbox=lambda: SimulatedInbox(self.world, self._idle),
            tail=lambda jobs, workers: self.scenario.tail,
        )

    # checks on the way

    def _compare(self, controller: Controller | None, writers: list[SimulatedWriter]) -> None:
        brain = getattr(controller, "brain", None)
        rows = self.disk.query(f"SELECT value FROM meta WHERE key = '{HEADER}'")
        if controller is None or brain is None or not rows:
            return
        header = decode(rows[0][0])
        assert isinstance(header, Header)
        check_counts(self.world, controller, self.trainings)
        check_recovery(
            self.world, self.disk, brain, writers[0], header, partial(create, self.scenario.policy)
        )

    def _idle(self) -> None:
        """The controller has done all that it was told."""
        if self.world.now - self._looked_at < LOOK_SECONDS or self.network.server is None:
            return
        self._looked_at = self.world.now
        controller = self.network.server.controller
        check_counts(self.world, controller, self.trainings)
        try:
            self._inspect(controller.brain.state)
        except AssertionError as problem:
            self.world.violation(f"an invariant of the state does not hold: {problem}")

    def _look_for_end(self) -> None:
        world, server = self.world, self.network.server
        world.after(5.0, self._look_for_end)
        if server is not None and world.now > self.scenario.calm_at:
            controller = server.controller
            records, jobs = controller.brain.state.records, controller.engine.live.jobs
            missing = len(self.users.acknowledged) < len(self.scenario.jobs)
            rest = records or jobs or missing or self.users.pending or self.launcher.living()
            if not rest:
                controller.engine.stop()
            elif world.now > self.scenario.calm_at + HORIZON_SECONDS:
                raise _OverdueError
            elif world.now > self.scenario.calm_at + HORIZON_SECONDS / 2:
                self._cancel_hostile(records)

    def _cancel_hostile(self, unfinished: Collection[str]) -> None:
        """A job that has lied about the numbers of its own reports is not heard any more: it runs
        until its user cancels it, as any script without an end does."""
        for job, training in self.trainings.items():
            if training.spec.is_hostile and job in unfinished and job not in self.users.cancelled:
                self.users.cancel(job)

    # processes

    def _spawn(self, launch: Launch) -> Running:
        spec = self.users.specs[int(launch.argv[-1])]
        training = self.trainings.get(launch.job)
        if training is None:
            training = self.trainings[launch.job] = Training(self.world, launch.job, spec)
        process: SimulatedWorker | FixedScript
        if "ONES_CONTROLLER" in launch.env and spec.joins:
            process = SimulatedWorker(self.world, self.network, self.launcher, training, launch)
            if spec.is_hostile:
                self._be_hostile(process)
        else:
            process = FixedScript(self.world, self.launcher, training, launch)
        self._processes.append(process)
        return process

    def _kill_one(self) -> None:
        self._processes = [process for process in self._processes if process.alive]
        if self._processes:
            self.world.fault("worker-death", "killed")
            self.world.dice.choice(self._processes).die()

    def _be_hostile(self, worker: SimulatedWorker) -> None:
        """With the token of its job it sends what no honest worker sends."""
        if worker.token not in self._heard:
            self._heard[worker.token] = []
            before = self.network.observe

            def observe(body: bytes, token: str) -> None:
                before(body, token)
                if token == worker.token and not self._attacking:
                    self._heard[token].append(body)

            self.network.observe = observe
        self._attack(worker)

    def _attack(self, worker: SimulatedWorker) -> None:
        world, heard = self.world, self._heard[worker.token]
        if not worker.alive or world.now > self.scenario.calm_at:
            return
        if heard:
            what, body = mutated(world.dice.choice(heard[-20:]), world.dice)
            world.fault("hostile", f"{worker.name}: {what}")
            self._attacking = True  # only honest messages are changed
            self.network.request(body, worker.token, 0.0, lambda status, answer: None)
            self._attacking = False
        seconds = world.dice.expovariate(1.0 / HOSTILE_SECONDS)
        world.after(seconds, lambda: self._attack(worker))
