"""srtf and srsf: the shortest first, by truth; and where the truth comes from."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from typer.testing import CliRunner

from ones.cli.app import app
from ones.core import Cluster, JobId, JobView
from ones.errors import InvalidSettingError
from ones.lab.runs import Run, RunSpec
from ones.models.oracle import Oracle, RemainingWork
from ones.policies import create
from ones.sim import Simulator
from ones.sim.oracle import oracle_of
from ones.workload import generate
from tests.policies.immediate_engine import ImmediateEngine


def told(seconds: dict[str, float], world: list[ImmediateEngine]) -> Oracle:
    """Lengths on any size, less what a job has run."""

    def ahead(job: JobView, gpus: int, batch: int) -> RemainingWork:
        return RemainingWork(1.0, seconds[job.id] - job.run_seconds_at(world[0].now))

    return ahead


def oracle_world(
    name: str, gpus: int, seconds: dict[str, float], **settings: Any
) -> ImmediateEngine:
    known: list[ImmediateEngine] = []
    known.append(ImmediateEngine(create(name, oracle=told(seconds, known), **settings), gpus))
    return known[0]


@effort(max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=4, unique=True))
def test_on_one_gpu_it_is_the_best_order_there_is(lengths: list[int]) -> None:
    seconds = {f"j{i}": float(n) for i, n in enumerate(lengths)}
    world = oracle_world("srtf", 1, seconds, count_restarts=False)
    for name in seconds:
        world.submit(name)
    total = 0.0
    while world.running:
        name = world.running[0]
        ran = world.scheduler.state.view().job(JobId(name)).run_seconds_at(world.now)
        left = seconds[name] - ran
        world.end(name, at=world.now + left)
        total += world.now

    def flow(order: tuple[int, ...]) -> float:
        return sum(sum(order[: i + 1]) for i in range(len(order)))

    # the first to come had started when the others came, at the same moment: no time was lost
    assert total == pytest.approx(min(flow(order) for order in permutations(lengths)))


def test_a_shorter_job_interrupts_if_that_pays_for_the_restart() -> None:
    seconds = {"long": 100.0, "short": 80.0, "shorter": 60.0}
    for counted in (True, False):
        world = oracle_world("srtf", 1, seconds, count_restarts=counted)
        world.submit("long")
        world.submit("short", at=10.0)  # no epoch of the long one was seen; a restart costs 25 s
        assert world.running == (["long"] if counted else ["short"])
        world.submit("shorter", at=10.0)
        assert world.running == ["shorter"]


def test_srsf_counts_gpus_as_well() -> None:
    seconds = {"wide": 50.0, "narrow": 90.0}
    first = {}
    for name in ("srtf", "srsf"):
        world = oracle_world(name, 4, {**seconds, "all": 1000.0})
        world.submit("all", gpus=4, priority=1.0)
        world.submit("wide", gpus=4)
        world.submit("narrow", gpus=1)
        world.end("all")
        first[name] = world.running
    assert first == {"srtf": ["wide"], "srsf": ["narrow"]}  # 200 GPU-seconds against 90


def test_the_simulator_s_oracle_knows_when_jobs_really_end() -> None:
    """Its epochs are those after which each job ended under a policy that keeps batches."""
    trace = generate(jobs=20, seed=4, gap=30.0)
    oracle = oracle_of(trace, seed=9)
    sim = Simulator(trace, Cluster.of(64), create("fifo"), seed=9)
    foretold: dict[str, RemainingWork] = {}

    def look(entry: object) -> None:
        view = sim.scheduler.state.view()
        for job, allocation in view.schedule.items():
            if job not in foretold and view.job(job).description is not None:
                foretold[job] = oracle(view.job(job), allocation.n_gpus, allocation.batch)

    ended = sim.run(look).state.ended
    assert {job: o.epochs for job, o in ended.items()} == {
        job: round(ahead.epochs) for job, ahead in foretold.items()
    }
    for job, outcome in ended.items():  # but for start-up, spreading and shared networks
        assert outcome.run_seconds >= 0.99 * foretold[job].seconds


@pytest.mark.parametrize("name", ["srtf", "srsf"])
def test_without_an_oracle_it_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"policy {name}: needs an oracle") as problem:
        create(name)
    assert "\n" not in str(problem.value)


def test_others_never_get_to_see_it() -> None:
    def unavailable_oracle(job: JobView, gpus: int, batch: int) -> RemainingWork:
        raise AssertionError("the oracle was called")

    trace = generate(jobs=10, seed=1, gap=5.0)
    for name in ("fifo", "tiresias", "optimus"):
        policy = create(name, oracle=unavailable_oracle)
        assert len(Simulator(trace, Cluster.of(8), policy).run().state.ended) == 10


@pytest.mark.parametrize("name", ["srtf", "srsf"])
def test_a_run_gives_it_the_truth_and_it_beats_first_come_first_served(name: str) -> None:
    def jct(policy: str) -> float:
        row = Run(RunSpec(policy=policy, gpus=16, jobs=40, seed=3)).carry_out()
        assert row["finished"] == 40
        return float(row["mean_jct"])

    assert jct(name) < jct("fifo")


def test_replaying_its_log_is_refused_because_logs_do_not_hold_the_truth(tmp_path: Path) -> None:
    Run(RunSpec(policy="srtf", gpus=8, jobs=5, seed=1)).carry_out_into(tmp_path)
    result = CliRunner().invoke(app, ["replay", str(tmp_path / "run.jsonl")])
    assert result.exit_code != 0
    assert "needs an oracle" in str(result.exception)
