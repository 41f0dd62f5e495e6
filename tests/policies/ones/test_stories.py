"""ONES in virtual time: what users would see."""

from __future__ import annotations

import pytest

from ones.core import Brain, Cluster, Event, Job, JobId, NodeId, Plan
from ones.core import events as ev
from ones.core.plan import Rescale, Start
from ones.policies import create
from ones.sim import Simulator
from ones.workload import Incident, Trace, TraceJob, Training

PROFILES = ("ones", "ones-paper")
KIND = "resnet50-imagenet"


def job(name: str, at: float, size: int = 10_000, epochs: int = 20) -> TraceJob:
    return TraceJob(
        Job(id=JobId(name), submitted_at=at, kind=KIND, requested_batch=64, epochs=epochs),
        Training(kind=KIND, dataset_size=size, base_batch=64),
    )


def play(
    policy: str, jobs: list[TraceJob], gpus: int, incidents: list[Incident] | None = None
) -> tuple[Simulator, list[Event | Plan]]:
    log: list[Event | Plan] = []
    trace = Trace.of("story", jobs, incidents or [])
    simulator = Simulator(trace, Cluster.of(gpus), create(policy, seed=1), mechanism="elastic")
    simulator.run(log.append)
    assert len(simulator.brain.state.ended) == len(jobs)
    return simulator, log


def sizes(log: list[Event | Plan], name: str) -> list[int]:
    return [
        action.allocation.n_gpus
        for plan in log
        if isinstance(plan, Plan)
        for action in plan.actions
        if isinstance(action, Start | Rescale) and action.job == name
    ]


@pytest.mark.parametrize("policy", PROFILES)
def test_a_job_alone_grows_over_the_cluster(policy: str) -> None:
    _, log = play(policy, [job("a", 0.0, size=20_000)], 8)
    grown = sizes(log, "a")
    assert grown[0] == 1  # the first start is on one GPU
    assert max(grown) == 8


@pytest.mark.parametrize("policy", PROFILES)
def test_a_short_job_that_comes_while_a_long_one_holds_all_is_let_in(policy: str) -> None:
    simulator, _ = play(policy, [job("long", 0.0, epochs=200), job("short", 200.0, epochs=5)], 8)
    short = simulator.brain.state.ended[JobId("short")]
    assert short.started_at is not None
    assert short.started_at - short.submitted_at < 60.0
    if policy == "ones":  # as printed, the score sums over running jobs: it may send it away again
        assert short.queue_seconds < 60.0
        assert short.ended_at < simulator.brain.state.ended[JobId("long")].ended_at


@pytest.mark.parametrize("policy", PROFILES)
def test_two_hundred_jobs_at_once_on_sixteen_gpus_all_run(policy: str) -> None:
    simulator, _ = play(policy, [job(f"j{i:03d}", 0.0, 3_000, 4) for i in range(200)], 16)
    started = [o.started_at for o in simulator.brain.state.ended.values()]
    assert all(at is not None for at in started)


@pytest.mark.parametrize("policy", PROFILES)
def test_a_cluster_that_shrinks_under_load_loses_nobody(policy: str) -> None:
    incidents: list[Incident] = [
        ev.NodeDown(60.0, NodeId("n0")),
        ev.NodeDraining(90.0, NodeId("n1")),
    ]
    simulator, _ = play(policy, [job(f"j{i}", 5.0 * i) for i in range(12)], 16, incidents)
    assert all(o.reason.completed for o in simulator.brain.state.ended.values())


def test_jobs_without_accuracy_and_without_a_kind_are_served() -> None:
    """Nothing but epochs and losses, or not even those: a script that never joins."""
    brain = Brain(Cluster.of(4), create("ones", seed=1))
    for i in range(3):
        brain.handle(ev.JobSubmitted(0.0, Job(id=JobId(f"j{i}"), submitted_at=0.0)))
    assert len(brain.state.schedule) == 3


def test_its_decisions_say_why_and_its_forecasts_hold_the_end_between_them() -> None:
    simulator, log = play("ones", [job(f"j{i}", 20.0 * i, epochs=15) for i in range(10)], 8)
    plans = [entry for entry in log if isinstance(entry, Plan)]
    notes = [note for plan in plans for note in plan.notes.values()]
    assert any("grows from" in note and "GPU-seconds left" in note for note in notes)
    forecasts = [(j, f) for plan in plans for j, f in plan.forecasts.items()]
    assert len(forecasts) > 50
    for _, forecast in forecasts:
        assert forecast.low <= forecast.eta <= forecast.high
    ends = {j: o.ended_at for j, o in simulator.brain.state.ended.items()}
    late = forecasts[len(forecasts) // 2 :]
    held = sum(f.low <= ends[j] <= f.high for j, f in late)
    assert held > 0.5 * len(late)
