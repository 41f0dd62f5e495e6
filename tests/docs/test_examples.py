"""The examples of the docs run, and keep the promises that the docs make for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.build import printed_by
from ones.config import load
from ones.core import Brain, Cluster, Forecast, Job, JobId
from ones.core import events as ev
from ones.core.job import EndReason, Generation
from ones.core.plan import Start
from ones.policies import OURS, create, settings_of
from ones.sim import Simulator
from ones.workload import check_fits, read_trace
from tests.contracts import test_policy as contracts

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: all that the contract suite asks of one policy, by its name
PROMISES: list[Callable[..., None]] = [
    check
    for name, check in vars(contracts).items()
    if name.startswith("test_") and list(inspect.signature(check).parameters) == ["name"]
]


@pytest.fixture(autouse=True)
def shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the guide says: a line in the registry."""
    monkeypatch.setitem(OURS, "shortest", "docs.guides.examples.shortest:Shortest")


def submit(brain: Brain, name: str, at: float, epochs: int | None, gpus: int = 1) -> list[str]:
    job = Job(
        id=JobId(name), submitted_at=at, kind="k", epochs=epochs, requested_gpus=gpus, retries=1
    )
    return started(brain, ev.JobSubmitted(at, job))


def started(brain: Brain, event: ev.Event) -> list[str]:
    return [action.job for action in brain.handle(event).actions if isinstance(action, Start)]


def end(brain: Brain, name: str, at: float) -> list[str]:
    """The job ends and its workers leave."""
    job = JobId(name)
    gpus = sorted(brain.state.records[job].occupied)
    found = started(brain, ev.JobEnded(at, job, EndReason.FINISHED))
    for gpu in gpus:
        found += started(brain, ev.WorkerLeft(at, job, Generation(99), gpu))
    return found


def test_the_shortest_job_starts_first_and_says_why() -> None:
    brain = Brain(Cluster.of(1), create("shortest"))
    assert submit(brain, "first", 0.0, 100) == ["first"]
    assert submit(brain, "long", 1.0, 50) == []
    assert submit(brain, "unknown", 2.0, None) == []
    assert submit(brain, "short", 3.0, 2) == []
    assert brain.state.records[JobId("short")].note == "needs 1 GPUs, 0 free"
    assert end(brain, "first", 4.0) == ["short"]
    assert brain.state.records[JobId("short")].note == "the shortest that fits: 2 epochs"
    assert end(brain, "short", 5.0) == ["long"]


def test_it_learns_how_long_an_epoch_takes_and_forecasts_the_end() -> None:
    brain = Brain(Cluster.of(2), create("shortest"))
    submit(brain, "a", 0.0, 10)
    gpu = next(iter(brain.state.records[JobId("a")].occupied))
    brain.handle(ev.WorkerReady(1.0, JobId("a"), Generation(1), gpu))
    brain.handle(
        ev.EpochFinished(
            at=3.0,
            job=JobId("a"),
            generation=Generation(1),
            epoch=1,
            samples=100,
            steps=10,
            step_seconds=0.2,
        )
    )
    submit(brain, "b", 4.0, 5)
    assert brain.state.records[JobId("b")].forecast == Forecast(14.0, 14.0, 14.0)


def test_after_its_patience_a_job_is_overtaken_no_more() -> None:
    brain = Brain(Cluster.of(2), create("shortest", patience=60.0))
    submit(brain, "first", 0.0, 1)
    assert submit(brain, "large", 1.0, 9, gpus=2) == []
    assert submit(brain, "small", 2.0, 1) == ["small"]
    assert end(brain, "small", 100.0) == []
    assert submit(brain, "late", 101.0, 1) == []
    assert end(brain, "first", 102.0) == ["large"]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda check: check.__name__)
def test_the_policy_of_the_guide_keeps_every_promise(promise: Callable[..., None]) -> None:
    promise(name="shortest")


def test_the_suite_was_found() -> None:
    assert len(PROMISES) >= 8
    assert [setting.name for setting in settings_of("shortest")] == ["patience"]


def test_the_scripted_story_goes_as_the_guide_says() -> None:
    told = printed_by(DOCS / "guides" / "examples" / "freed_gpu.py")
    assert told.splitlines()[-1] == " 9.3 s  plan 3: Start b"


@pytest.mark.parametrize("policy", ["equi", "fifo", "shortest"])
def test_the_trace_of_the_reference_runs_under_every_policy(policy: str) -> None:
    trace = read_trace(DOCS / "reference" / "examples" / "trace.csv")
    cluster = Cluster.of(8)
    check_fits(trace, cluster)
    state = Simulator(trace, cluster, create(policy)).run().state
    assert {job: outcome.reason for job, outcome in state.ended.items()} == {
        "bert-1": EndReason.CANCELLED,
        "resnet-1": EndReason.FINISHED,
        "vgg-1": EndReason.CONVERGED,
    }


def test_the_settings_of_the_reference_are_taken() -> None:
    effective = load({}, DOCS / "reference" / "examples")
    assert effective.settings.sim.gpus == 16
    assert create("fifo", **effective.settings.policy["fifo"])
