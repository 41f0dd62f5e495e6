"""The simulator that is not ours: its laws, what it tells, and that nothing of ours is in it."""

from __future__ import annotations

import ast
import ctypes
from dataclasses import replace
from pathlib import Path

import pytest

from docs.reference.results import EMBED_ROW_KEYS
from ones.core import Brain, Cluster, SwitchCost
from ones.errors import InvalidFileError, UnknownNameError
from ones.lab import bench_embed_jobs, bench_embed_world
from ones.lab.bench import results_only
from ones.lab.bench_embed import IDEAL, QUICK, bench_embed, run
from ones.lab.bench_embed_jobs import generated, read, without_kinds
from ones.lab.bench_embed_world import KINDS, Rules, World
from ones.policies import create

SMALL = replace(QUICK, jobs=12, hours=0.5, gpus=16)
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def _short_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take hours, and with them thousands of decisions."""
    monkeypatch.setattr(bench_embed_jobs, "MIX", {"ncf": 0.6, "cifar10": 0.4})


def test_nothing_of_our_physics_is_in_it() -> None:
    here = Path(bench_embed_world.__file__).parent
    for path in here.glob("bench_embed*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                for name in (*names, getattr(node, "module", None) or ""):
                    assert not name.startswith(("ones.sim", "ones.workload")), path.name


def test_a_job_alone_takes_its_work_over_its_rate_and_the_first_pause() -> None:
    job = next(t for t in generated(1, 40, scatter=0.0) if t.job.kind == "cifar10")
    start = -(-job.job.submitted_at // 60.0) * 60.0  # nobody looks before
    brain = Brain(Cluster.of(1), create("fifo"), switch_cost=SwitchCost(30.0, 30.0))
    seconds = World(brain, [replace(job)], Rules(jitter=0.0)).run()
    kind = KINDS["cifar10"]
    step = kind.fixed + kind.sample * kind.base_batch
    alone = kind.epochs * kind.size / kind.base_batch * step
    late = start - job.job.submitted_at + 30.0
    assert seconds[job.job.id] == pytest.approx(alone + late)


@pytest.mark.parametrize("policy", ["ones", "equi", "sia"])
def test_every_job_ends_and_all_that_was_told_was_taken(policy: str) -> None:
    world = run(policy, SMALL, 30.0, 7)
    assert len(world.seconds) == 12
    assert not world.here
    assert not world.brain.state.records
    assert not world.brain.state.dropped


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
    with pytest.raises(UnknownNameError, match="'onse'; did you mean 'ones'"):
        bench_embed(["onse"], SMALL)


def test_what_a_library_prints_is_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    with results_only():
        libc.printf(b"from a solver\n")
        print("from somebody's policy")
    libc.printf(b"ours\n")
    libc.fflush(None)
    assert capfd.readouterr() == ("ours\n", "from somebody's policy\n")


def test_workloads_of_pollux_can_be_read_and_bad_ones_are_named(tmp_path: Path) -> None:
    jobs = read(DATA / "pollux.csv", 1)
    assert jobs[0].job.id == "cifar10-0"
    assert jobs[0].job.submitted_at == 107.0
    assert {t.job.kind for t in without_kinds(jobs)} == {""}
    path = tmp_path / "bad.csv"
    for text, message in (
        ("name,time\na,1\n", "bad.csv:1: has no column application"),
        ("name,time,application\na,1,cifra10\n", "bad.csv:2: unknown application 'cifra10'"),
        ("name,time,application\na,soon,ncf\n", "bad.csv:2: time: 'soon' is not at least 0"),
        ("name,time,application\n", "bad.csv: holds no job"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidFileError, match=message):
            read(path, 1)
    with pytest.raises(InvalidFileError, match=r"none\.csv: cannot be read"):
        read(tmp_path / "none.csv", 1)
