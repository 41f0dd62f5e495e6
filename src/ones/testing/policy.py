"""Contract suite of policies."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from msgspec.structs import replace

from ones.core import (
    Cluster,
    Decision,
    EndReason,
    Event,
    Generation,
    NodeId,
    Plan,
    Policy,
    Scheduler,
    View,
    drive,
)
from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.job import Job, JobId
from ones.core.plan import Start
from ones.models.oracle import Oracle, RemainingWork
from ones.policies import create, settings_of
from ones.runlog import encode
from ones.sim import Simulator
from ones.sim.oracle import oracle_of
from ones.sim.run import slots_of
from ones.testing.chaos import ChaosEngine
from ones.testing.invariants import check_invariants
from ones.workload import Trace, generate
from ones.workload.trace import Incident

RUN_SEED = 3


class _Watched:
    """Calls `decide` twice: both decisions must be equal, and the state unchanged."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.decides_on = policy.decides_on
        self.native_mechanism = policy.native_mechanism
        self.slots_per_gpu = slots_of(policy)
        self.observe = policy.observe
        self.save = policy.save
        self.load = policy.load
        self.decisions = 0

    def decide(self, view: View) -> Decision:
        before = json.dumps(self.policy.save())
        first, second = self.policy.decide(view), self.policy.decide(view)
        assert first == second, "two calls of decide gave different decisions"
        assert json.dumps(self.policy.save()) == before, "decide changed the state of the policy"
        if not view.jobs:
            assert first.wake_at == float("inf"), "wake_at is set although no job is left"
        unknown = {*first.notes, *first.forecasts} - set(view.jobs)
        assert not unknown, f"notes for jobs that do not exist: {unknown}"
        self.decisions += 1
        return first


def _run(policy: Policy, trace: Trace, *, gpus: int = 16, mechanism: str = "elastic") -> list[str]:
    """Runs a simulation; returns the plans as logged. The core refuses invalid decisions."""
    simulator = Simulator(trace, Cluster.of(gpus), policy, mechanism=mechanism, seed=RUN_SEED)
    lines: list[str] = []

    def record(entry: Event | Plan) -> None:
        if isinstance(entry, Plan):
            lines.append(encode(entry))

    result = simulator.run(record)
    check_invariants(result.state)
    assert len(result.state.ended) == len(trace.jobs), "a job did not finish"
    return lines


class PolicyContract:
    """Set `policy`: a name, or the path of a file. Override `make` for settings of your own.

    Every policy finishes all jobs, decides the same when asked twice and with the same seed,
    continues after being saved and loaded, survives failures, keeps the limits of owners and of
    the cluster, and documents its settings.
    """

    policy: ClassVar[str] = ""

    @pytest.fixture
    def name(self) -> str:
        return self.policy

    def make(self, name: str, seed: int, oracle: Oracle) -> Policy:
        return create(name, seed=seed, oracle=oracle)

    def fresh(self, name: str, *, seed: int, trace: Trace | None = None) -> Policy:
        """A new policy. An oracle is for the trace, or constant without one."""
        if trace is not None:
            return self.make(name, seed, oracle_of(trace, seed=RUN_SEED))
        return self.make(name, seed, lambda job, gpus, batch: RemainingWork(9.0, 2.0))

    def test_it_finishes_every_job_and_decides_the_same_when_asked_twice(self, name: str) -> None:
        trace = generate(jobs=20, seed=5, gap=20.0)
        watched = _Watched(self.fresh(name, seed=1, trace=trace))
        _run(watched, trace)
        assert watched.decisions > 30

    def test_the_same_seed_gives_the_same_plans(self, name: str) -> None:
        trace = generate(jobs=20, seed=6, gap=10.0)
        one, other = self.fresh(name, seed=4, trace=trace), self.fresh(name, seed=4, trace=trace)
        assert _run(one, trace) == _run(other, trace)

    def test_it_goes_on_after_being_saved_and_loaded(self, name: str) -> None:
        """During a run its state is saved as JSON and loaded into a new policy."""
        trace = generate(jobs=20, seed=7, gap=10.0)
        contract = self

        class Reloaded(_Watched):
            def decide(self, view: View) -> Decision:
                self.decisions += 1
                if self.decisions % 10 == 0:
                    saved = json.loads(json.dumps(self.policy.save()))
                    self.policy = contract.fresh(name, seed=4, trace=trace)
                    self.policy.load(saved)
                    self.observe = self.policy.observe
                return self.policy.decide(view)

        plain = _run(self.fresh(name, seed=4, trace=trace), trace)
        assert _run(Reloaded(self.fresh(name, seed=4, trace=trace)), trace) == plain

    @pytest.mark.parametrize("seed", range(25))
    def test_it_survives_random_failures(self, name: str, seed: int) -> None:
        self.check_random_failures(name, seed)

    def test_it_keeps_to_owners_limits_and_priorities(self, name: str) -> None:
        scheduler = Scheduler(Cluster.of(8), self.fresh(name, seed=1))
        scheduler.handle(ev.OwnerLimitSet(0.0, "greedy", 2))
        for i in range(6):
            owner, priority = ("greedy", 0.0) if i < 4 else ("modest", 5.0 if i == 5 else 0.0)
            job = Job(
                id=JobId(f"j{i}"),
                submitted_at=0.0,
                owner=owner,
                priority=priority,
                requested_batch=64,
            )
            scheduler.handle(ev.JobSubmitted(0.0, job))
        scheduler.handle(ev.Woke(60.0))  # lets a policy that decides in rounds hold one
        assert scheduler.state.waiting.use["greedy"] <= 2
        assert all(j in scheduler.state.schedule for j in (JobId("j4"), JobId("j5")))

    def test_it_starts_jobs_of_owners_with_less_past_use_first(self, name: str) -> None:
        """Equal jobs of equal priority wait for two GPUs; those of the heavy user came first."""
        scheduler = Scheduler(Cluster.of(2), self.fresh(name, seed=1))
        hour = 3600.0
        used = {"heavy": 300 * hour, "light": hour}  # shares are 23 GPU hours
        scheduler.handle(ev.FairShareSet(0.0, 24 * hour, used))
        plain = Job(id=JobId("first"), submitted_at=0.0, requested_batch=64, elastic=False)
        first = replace(plain, owner="other", requested_gpus=2, min_gpus=2, max_gpus=2)
        scheduler.handle(ev.JobSubmitted(0.0, first))
        gpus = scheduler.state.cluster.gpus()
        for at in (60.0, 600.0):  # lets a policy that decides in rounds hold one
            scheduler.handle(ev.Woke(at))
        for gpu in gpus:
            scheduler.handle(ev.WorkerReady(601.0, first.id, Generation(1), gpu))
        for i, owner in enumerate(("heavy", "heavy", "light", "light")):
            job = replace(plain, id=JobId(f"{owner}-{i}"), owner=owner, max_gpus=1)
            scheduler.handle(ev.JobSubmitted(602.0 + i, replace(job, submitted_at=602.0 + i)))
        scheduler.handle(ev.JobEnded(700.0, first.id, EndReason.FINISHED))
        for gpu in gpus:
            scheduler.handle(ev.WorkerLeft(701.0, first.id, Generation(1), gpu))
        for at in (760.0, 1_400.0, 7_000.0):
            scheduler.handle(ev.Woke(at))
        assert {job.split("-")[0] for job in scheduler.state.schedule} == {"light"}

    def test_it_follows_a_cluster_that_changes_size(self, name: str) -> None:
        trace = generate(jobs=25, seed=8, gap=15.0)
        incidents: list[Incident] = [
            ev.NodeDown(100.0, NodeId("n1")),
            ev.NodeDraining(150.0, NodeId("n2")),
            ev.NodeUp(400.0, NodeId("n1"), 4),
            ev.NodeUp(500.0, NodeId("n9"), 4),
            ev.NodeDown(600.0, NodeId("n2")),
        ]
        changing = Trace.of("changing", trace.jobs, incidents)
        _run(self.fresh(name, seed=1, trace=changing), changing)

    def test_it_starts_jobs_of_which_nothing_is_known(self, name: str) -> None:
        """No batch, no epochs, no kind; the script has not joined, and may never join."""
        scheduler = Scheduler(Cluster.of(4), self.fresh(name, seed=1))
        for i in range(3):
            scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId(f"j{i}"), submitted_at=0.0)))
        scheduler.handle(ev.Woke(100.0))
        assert len(scheduler.state.schedule) == 3

    def test_it_uses_no_gpu_that_was_set_aside(self, name: str) -> None:
        cluster = Cluster.of(8)
        scheduler = Scheduler(cluster, self.fresh(name, seed=1))
        aside = [Gpu(NodeId("n0"), 1), Gpu(NodeId("n1"), 3)]
        scheduler.handle(ev.GpuSetAside(0.0, aside[0], "broken"))
        for i in range(12):  # more jobs than GPUs; the core refuses a cordoned GPU
            job = Job(id=JobId(f"j{i}"), submitted_at=1.0, requested_batch=64)
            scheduler.handle(ev.JobSubmitted(1.0, job))
        scheduler.handle(ev.GpuSetAside(2.0, aside[1], "broken"))
        for at in (60.0, 600.0, 6000.0):
            scheduler.handle(ev.Woke(at))
            assert aside[0] not in scheduler.state.assigned
        scheduler.handle(ev.GpuReturned(6001.0, aside[0]))
        for at in (6060.0, 6600.0, 12_000.0):
            scheduler.handle(ev.Woke(at))
        assert aside[0] in scheduler.state.assigned, "a GPU that returned is used again"

    def test_its_settings_are_documented(self, name: str) -> None:
        for setting in settings_of(name):
            assert setting.help, f"{setting.name} has no help"

    def test_it_leaves_a_job_that_is_not_elastic_where_it_is(self, name: str) -> None:
        """A script that does not call ones.join would start from the beginning if it were moved."""
        scheduler = Scheduler(Cluster.of(2), self.fresh(name, seed=1))
        fixed = Job(id=JobId("fixed"), submitted_at=0.0, max_gpus=1, elastic=False)
        (start,) = scheduler.handle(ev.JobSubmitted(0.0, fixed)).actions
        assert isinstance(start, Start)
        gpu = start.allocation.gpus[0]
        scheduler.handle(ev.WorkerReady(1.0, fixed.id, Generation(1), gpu))
        for i in range(6):
            more = Job(id=JobId(f"j{i}"), submitted_at=2.0 + i, priority=5.0, requested_batch=64)
            scheduler.handle(ev.JobSubmitted(2.0 + i, more))  # the core refuses to move it
        for at in (60.0, 600.0, 6000.0, 60_000.0):
            scheduler.handle(ev.Woke(at))
            held = scheduler.state.schedule.get(fixed.id)
            assert held is not None
            assert held.gpus == (gpu,)

    def check_random_failures(self, name: str, seed: int) -> None:
        """Runs with pinned jobs, losses, draining nodes and late reports."""
        cluster = Cluster.of(10, 4)
        scheduler = Scheduler(cluster, self.fresh(name, seed=1))
        entries = 0

        def record(entry: Event | Plan) -> None:
            nonlocal entries
            entries += 1
            check_invariants(scheduler.state)
            assert entries < 20_000, "the run does not end"

        drive(scheduler, ChaosEngine(cluster, 8, seed, trouble=0.15), record)
        assert not scheduler.state.records
