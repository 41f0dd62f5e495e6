"""The live service under simulated faults: many seeds, and that the checks can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from ones.cli.app import app
from ones.control.controller import Controller, Options
from ones.control.persistence import Done
from ones.control.store import Store
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core.cluster import NodeId, NodeState
from ones.core.engine import drive
from ones.core.events import EpochFinished, Event
from ones.core.job import Job, JobId
from ones.core.plan import Plan
from ones.lab.bench.faults import bench_faults
from ones.lab.faults import KINDS, run_seed
from ones.lab.faults.context import ControllerInstance, FaultContext
from ones.lab.faults.disk import SimulatedDisk, SimulatedWriter
from ones.lab.faults.inbox import SimulatedClock, SimulatedInbox
from ones.lab.faults.job import SimulatedJob
from ones.lab.faults.job_spec import JobSpec
from ones.lab.faults.launcher import SimulatedLauncher
from ones.lab.faults.network import SimulatedNetwork, SimulatedServer
from ones.lab.faults.scenario import TIMEOUTS
from ones.lab.faults.worker import SimulatedWorker
from ones.launchers import Launch, LaunchedProcess
from ones.testing.invariants import check_invariants
from ones.wire import Reports

PORTION = 20  # seeds of one test


def _violations(first: int) -> list[tuple[int, str, tuple[str, ...]]]:
    seeds = range(first, first + PORTION)
    results = [run_seed(seed, inspect=check_invariants) for seed in seeds]
    return [(r.seed, r.policy, r.violations) for r in results if r.violations]


@pytest.mark.parametrize("first", range(0, 60, PORTION))
def test_what_must_hold_holds_whatever_happens(first: int) -> None:
    assert not _violations(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(60, 300, PORTION))
def test_what_must_hold_holds_in_many_more_worlds(first: int) -> None:
    assert not _violations(first)


@pytest.mark.parametrize("seed", [1617, 5001, 6501, 6698, 7572, 7715, 8223, 8830, 9575])
def test_seeds_that_found_faults_find_none_again(seed: int) -> None:
    assert not run_seed(seed, inspect=check_invariants).violations


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_decides_everything(seed: int) -> None:
    first = run_seed(seed, keep_trace=True)
    second = run_seed(seed)
    assert first.digest == second.digest
    assert first.faults == second.faults
    assert first.digest != run_seed(seed + 1).digest
    assert len(first.trace) > 50


def test_kinds_that_are_left_out_do_not_happen() -> None:
    happened: set[str] = set()
    for seed in range(10):
        happened |= run_seed(seed, kinds=["crash", "cancel"]).faults.keys()
    assert happened == {"crash", "cancel"}


def test_all_kinds_happen() -> None:
    row = bench_faults(range(40), policy="fifo")[-1]
    assert row["faults"].keys() == set(KINDS)
    assert row["virtual_hours"] > 0.5


# the checks can fail


def _found(what: str, **broken: type) -> bool:
    """Within some seeds, without crashes of the controller unless they are what is needed."""
    for seed in range(40):
        found = run_seed(seed, policy="equi", **broken).violations  # type: ignore[arg-type]
        if any(what in violation for violation in found):
            return True
    return False


class _Forgetful(SimulatedLauncher):
    """Knows nothing of what an earlier controller has launched."""

    def running(self) -> dict[str, LaunchedProcess]:
        return {}


class _Hasty(Controller):
    """Acknowledges submissions before they are safe, and loses one of three."""

    def submit(self, job: Job, submission: Submission, done: Done) -> None:
        done(None)
        if not job.id.endswith(("3", "6")):
            super().submit(job, submission, lambda problem: None)


class _Careless(Controller):
    """Does not write down the epochs that it counts."""

    def run(self) -> None:
        def record(entry: Event | Plan, *attached: Any) -> None:
            if not isinstance(entry, EpochFinished):
                self.recorder(entry, *attached)

        drive(self.scheduler, self.engine, record)


class _Deaf(Controller):
    """Forgets which reports it has heard."""

    def report(self, message: Reports, done: Done) -> None:
        for worker in self.engine.live.jobs[JobId(message.job)].workers.values():
            worker.heard = 0
        super().report(message, done)


def test_two_processes_on_one_gpu_are_found() -> None:
    assert _found("has two processes", launcher=_Forgetful)


def test_a_lost_submission_is_found() -> None:
    assert _found("was acknowledged and is lost", controller=_Hasty)


def test_a_recovery_that_differs_from_the_run_is_found() -> None:
    assert _found("recovered state differs", controller=_Careless)


def test_a_report_that_counts_twice_is_found() -> None:
    assert _found("in the state", controller=_Deaf)


# the command


def test_the_command_prints_rows_and_replays_a_seed() -> None:
    run = CliRunner().invoke(
        app,
        ["bench", "faults", "--seeds", "2", "--policy", "fifo", "--json", "--without", "hostile"],
    )
    assert run.exit_code == 0
    (row,) = json.loads(run.stdout)["rows"]
    assert (row["case"], row["seeds"], row["violations"]) == ("fifo", 2, [])
    assert row["seeds_per_second"] > 0
    run = CliRunner().invoke(app, ["bench", "faults", "--seed", "1", "--without", "hostile"])
    assert run.exit_code == 0
    assert "the controller starts" in run.stderr


# what the seeds have found, kept as it was found: the seeds of later versions are other worlds


def test_a_node_that_was_lost_while_the_controller_was_away_gets_no_job() -> None:
    """An order that is begun again launches on that node: this does not make it a busy one."""
    context = FaultContext(1)
    disk = SimulatedDisk(context)

    def instance(nodes: dict[str, int], then: Callable[[Controller], None]) -> Controller:
        writer = partial(SimulatedWriter, context, disk, context.instance)
        options = Options(
            policy="fifo",
            clock=partial(SimulatedClock, context),
            inbox=lambda: SimulatedInbox(context, lambda: None),
        )
        launcher = SimulatedLauncher(context, nodes, lambda launch: pytest.fail("it was started"))
        controller = Controller(Store(disk.engine, writer), JobTokens(b"key"), launcher, options)
        controller.load("http://controller", "/checkpoints")
        context.after(0.0, lambda: then(controller))
        context.after(0.04, controller.engine.stop)
        controller.run()
        context.instance.alive = False
        context.instance = ControllerInstance()
        return controller

    job = Job(id=JobId("a-1"), submitted_at=0.0, retries=0)
    submission = Submission(name="a", argv=("-",), cwd="/", elastic=True)
    first = instance(
        {"n0": 1}, lambda controller: controller.submit(job, submission, lambda _: None)
    )
    assert first.scheduler.state.records[job.id].in_flight is not None
    state = instance({}, lambda controller: None).scheduler.state
    assert state.cluster.nodes[NodeId("n0")].state is NodeState.DOWN
    assert state.records[job.id].failures == 0


def test_a_worker_that_hangs_while_the_controller_is_away_is_killed_after_its_restart() -> None:
    context = FaultContext(1)
    disk, network = SimulatedDisk(context), SimulatedNetwork(context)
    spec = JobSpec(number=1, epochs=10_000, dataset_size=100, base_batch=10, samples_per_second=10)
    jobs: dict[str, SimulatedJob] = {}

    def spawn(launch: Launch) -> SimulatedWorker:
        job = jobs.setdefault(launch.job, SimulatedJob(context, launch.job, spec))
        return SimulatedWorker(context, network, launcher, job, launch)

    launcher = SimulatedLauncher(context, {"n0": 1}, spawn)

    def instance(*, reachable: bool, seconds: float) -> list[str]:
        """The launches that live after a controller has run for this time."""
        writer = partial(SimulatedWriter, context, disk, context.instance)
        options = Options(
            policy="fifo",
            timeouts=TIMEOUTS,
            clock=partial(SimulatedClock, context),
            inbox=lambda: SimulatedInbox(context, lambda: None),
        )
        controller = Controller(Store(disk.engine, writer), JobTokens(b"key"), launcher, options)
        controller.load("http://controller", "/checkpoints")
        if not jobs:
            job = Job(id=JobId("a-1"), submitted_at=0.0, retries=1)
            submission = Submission(name="a", argv=("1",), cwd="/", elastic=True)
            context.after(0.0, lambda: controller.submit(job, submission, lambda _: None))
        network.server = (
            SimulatedServer(context, controller, context.instance) if reachable else None
        )
        context.after(seconds, controller.engine.stop)
        controller.run()
        context.instance.alive = False
        context.instance = ControllerInstance()
        launcher.crashed()
        return launcher.living()

    (first,) = instance(reachable=True, seconds=30.0)
    assert instance(reachable=False, seconds=TIMEOUTS.silence_seconds - 5) == [first]
    assert instance(reachable=True, seconds=TIMEOUTS.silence_seconds + 30) == [first], "it calls"
    after = instance(reachable=False, seconds=TIMEOUTS.silence_seconds + 30)
    assert first not in after, "it hangs for longer than it may"
