"""The second, independent model: its laws, what it tells, and that no code of ours is in it."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from docs.reference.results import EMBED_ROW_KEYS
from ones.core import Cluster, Scheduler, SwitchCost
from ones.errors import InvalidFileError, UnknownNameError
from ones.lab.bench.embed import simulator, workload
from ones.lab.bench.embed.benchmark import IDEAL, QUICK, bench_embed, run
from ones.lab.bench.embed.kinds import KINDS
from ones.lab.bench.embed.simulator import SimulatorRules, TickSimulator
from ones.lab.bench.embed.workload import generated
from ones.policies import create

SMALL = replace(QUICK, jobs=12, hours=0.5, gpus=16)


@pytest.fixture(autouse=True)
def _short_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take hours, and with them thousands of decisions."""
    monkeypatch.setattr(workload, "MIX", {"ncf": 0.6, "cifar10": 0.4})


def test_nothing_of_our_physics_is_in_it() -> None:
    here = Path(simulator.__file__).parent
    for path in here.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                for name in (*names, getattr(node, "module", None) or ""):
                    assert not name.startswith(("ones.sim", "ones.workload")), path.name


def test_a_job_alone_takes_its_work_over_its_rate_and_the_first_pause() -> None:
    job = next(t for t in generated(1, 40, scatter=0.0) if t.job.kind == "cifar10")
    start = -(-job.job.submitted_at // 60.0) * 60.0  # the next tick
    scheduler = Scheduler(Cluster.of(1), create("fifo"), switch_cost=SwitchCost(30.0, 30.0))
    seconds = TickSimulator(scheduler, [replace(job)], SimulatorRules(jitter=0.0)).run()
    kind = KINDS["cifar10"]
    step = kind.fixed + kind.sample * kind.base_batch
    alone = kind.epochs * kind.size / kind.base_batch * step
    late = start - job.job.submitted_at + 30.0
    assert seconds[job.job.id] == pytest.approx(alone + late)


@pytest.mark.parametrize("policy", ["ones", "equi", "sia"])
def test_every_job_ends_and_no_report_is_dropped(policy: str) -> None:
    finished = run(policy, SMALL, 30.0, 7)
    assert len(finished.seconds) == 12
    assert not finished.active
    assert not finished.scheduler.state.records
    assert not finished.scheduler.state.dropped


def test_the_same_run_gives_the_same_times() -> None:
    assert run(IDEAL, SMALL, 30.0, 7).seconds == run(IDEAL, SMALL, 30.0, 7).seconds


def test_rows_have_the_ideal_as_rival_and_cheap_changes_are_better() -> None:
    rows = bench_embed(["ones", "fifo"], replace(SMALL, costs=(30.0, 1.0)))
    assert [row["policy"] for row in rows] == [IDEAL, "ones", "fifo"] * 2
    assert all(set(row) == set(EMBED_ROW_KEYS) for row in rows)
    by = {(row["policy"], row["cost_seconds"]): row for row in rows}
    assert by["ones", 30.0]["rival_mean_jct_seconds"] == by[IDEAL, 30.0]["mean_jct_seconds"]
    assert by["ones", 30.0]["ratio"] < by["fifo", 30.0]["ratio"]
    assert by[IDEAL, 1.0]["mean_jct_seconds"] < by[IDEAL, 30.0]["mean_jct_seconds"]
    assert by[IDEAL, 30.0]["rival"] is None
    assert by["fifo", 30.0]["size_changes"] == by["fifo", 30.0]["taken_back"] == 0
    assert by["ones", 1.0]["size_changes"] > by["ones", 1.0]["taken_back"] >= 0
    with pytest.raises(UnknownNameError, match="'onse'; did you mean 'ones'"):
        bench_embed(["onse"], SMALL)


def test_variants_are_compared_pair_by_pair(tmp_path: Path) -> None:
    trial = replace(SMALL, workloads=2, jobs=6)
    labels, given = ["fifo", "ones:still"], ["ones:still.spacing=1000000"]
    rows = bench_embed(labels, trial, given=given, rival="fifo")
    by = {row["policy"]: row for row in rows}
    assert by["fifo"]["rival"] is None
    still = by["ones:still"]
    assert (still["rival"], still["rival_mean_jct_seconds"]) == (
        "fifo",
        by["fifo"]["mean_jct_seconds"],
    )
    assert still["ratio_low"] <= still["ratio"] <= still["ratio_high"]
    assert still["mean_jct_seconds"] != bench_embed(["ones"], trial)[1]["mean_jct_seconds"]

    before = tmp_path / "before.json"
    before.write_text(json.dumps({"rows": rows}))
    again = bench_embed(["fifo"], trial, rival=str(before))
    assert [row["ratio"] for row in again] == [1.0, 1.0]
    other_jobs = bench_embed(["fifo"], replace(trial, first_seed=7), rival=str(before))
    assert [row["ratio"] for row in other_jobs] == [None, None]


def test_a_rival_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'fif'; did you mean 'fifo'"):
        bench_embed(["fifo"], SMALL, rival="fif")
    broken = tmp_path / "broken.json"
    broken.write_text('{"rows": [{"policy": "fifo"}]}')
    with pytest.raises(InvalidFileError, match="embed --json"):
        bench_embed(["fifo"], SMALL, rival=str(broken))
