"""The examples of the docs run, and keep the promises that the docs make for them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.build import printed_by
from ones.config import load
from ones.core import Cluster, Forecast, Job, JobId, Scheduler
from ones.core import events as ev
from ones.core.job import EndReason, Generation
from ones.core.plan import Start
from ones.policies import OURS, create, settings_of
from ones.sim import Simulator
from ones.workload import check_fits, read_trace

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = DOCS / "guides" / "examples"


@pytest.fixture(autouse=True)
def shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the guide says: a line in the registry."""
    monkeypatch.setitem(OURS, "shortest", "docs.guides.examples.shortest:Shortest")


def submit(
    scheduler: Scheduler, name: str, at: float, epochs: int | None, gpus: int = 1
) -> list[str]:
    job = Job(
        id=JobId(name), submitted_at=at, kind="k", epochs=epochs, requested_gpus=gpus, retries=1
    )
    return started(scheduler, ev.JobSubmitted(at, job))


def started(scheduler: Scheduler, event: ev.Event) -> list[str]:
    return [action.job for action in scheduler.handle(event).actions if isinstance(action, Start)]


def end(scheduler: Scheduler, name: str, at: float) -> list[str]:
    """The job ends and its workers leave."""
    job = JobId(name)
    gpus = sorted(scheduler.state.records[job].occupied)
    found = started(scheduler, ev.JobEnded(at, job, EndReason.FINISHED))
    for gpu in gpus:
        found += started(scheduler, ev.WorkerLeft(at, job, Generation(99), gpu))
    return found


def test_the_shortest_job_starts_first_and_says_why() -> None:
    scheduler = Scheduler(Cluster.of(1), create("shortest"))
    assert submit(scheduler, "first", 0.0, 100) == ["first"]
    assert submit(scheduler, "long", 1.0, 50) == []
    assert submit(scheduler, "unknown", 2.0, None) == []
    assert submit(scheduler, "short", 3.0, 2) == []
    assert scheduler.state.records[JobId("short")].note == "needs 1 GPUs, 0 free"
    assert end(scheduler, "first", 4.0) == ["short"]
    assert scheduler.state.records[JobId("short")].note == "the shortest that fits: 2 epochs"
    assert end(scheduler, "short", 5.0) == ["long"]


def test_it_learns_how_long_an_epoch_takes_and_forecasts_the_end() -> None:
    scheduler = Scheduler(Cluster.of(2), create("shortest"))
    submit(scheduler, "a", 0.0, 10)
    gpu = next(iter(scheduler.state.records[JobId("a")].occupied))
    scheduler.handle(ev.WorkerReady(1.0, JobId("a"), Generation(1), gpu))
    scheduler.handle(
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
    submit(scheduler, "b", 4.0, 5)
    assert scheduler.state.records[JobId("b")].forecast == Forecast(14.0, 14.0, 14.0)


def test_after_its_patience_a_job_is_overtaken_no_more() -> None:
    scheduler = Scheduler(Cluster.of(2), create("shortest", patience=60.0))
    submit(scheduler, "first", 0.0, 1)
    assert submit(scheduler, "large", 1.0, 9, gpus=2) == []
    assert submit(scheduler, "small", 2.0, 1) == ["small"]
    assert end(scheduler, "small", 100.0) == []
    assert submit(scheduler, "late", 101.0, 1) == []
    assert end(scheduler, "first", 102.0) == ["large"]


@pytest.mark.parametrize("example", ["test_shortest.py", "test_scratch.py", "test_disk.py"])
def test_the_contract_suites_run_without_a_clone(example: str, tmp_path: Path) -> None:
    """As in a user's directory: without our configuration, with these files only."""
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", example],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    guide = (DOCS / "guides" / "contracts.md").read_text(encoding="utf-8")
    (section,) = [part for part in guide.split("\n## ") if f"include: examples/{example}" in part]
    assert re.findall(r"^(\d+) tests", section, re.MULTILINE) == [passed]


def test_the_settings_of_the_example_are_found() -> None:
    assert [setting.name for setting in settings_of("shortest")] == ["patience"]


def test_the_scripted_run_matches_the_guide() -> None:
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
