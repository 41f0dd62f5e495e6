"""`ones compare` as its users meet it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ones.cli import main

Ones = Callable[..., tuple[int, str, str]]
TINY = ("--seeds", "2", "--jobs", "3", "--gpus", "16", "--processes", "1")
PROMISED = {
    "policy", "workload", "gpus", "jobs", "seed", "mechanism", "mean_jct", "median_jct", "p95_jct",
    "p99_jct", "mean_exec", "mean_queue", "makespan", "utilization", "rescales", "rescale_rate",
    "preemptions", "finished", "wall_seconds", "policy_cpu_seconds", "events",
}  # fmt: skip


@pytest.fixture
def ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ones:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("ONES_")]:
        monkeypatch.delenv(variable)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ones", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        assert isinstance(left.value.code, int)
        return left.value.code, *capsys.readouterr()

    return run


def test_json_has_the_promised_keys_and_files_are_left(ones: Ones, tmp_path: Path) -> None:
    code, out, err = ones(
        "compare", "--policies", "fifo,equi", *TINY, "--mechanism", "native,elastic",
        "--first-seed", "7", "--set", "fifo.backfill=true", "--out", "out", "--json",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    assert {"rows", "summary"} <= set(told)
    assert len(told["rows"]) == 2 * 2 * 2
    for row in told["rows"]:
        assert set(row) >= PROMISED
        assert row["seed"] in (7, 8)
    assert {row["label"] for row in told["summary"]} == {"fifo", "equi"}
    assert told["summary"][0]["settings"] == {"backfill": True}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"rows.jsonl", "results.json", "rows.csv", "jobs.csv", "index.html", "figures"}
    page = (tmp_path / "out" / "index.html").read_text()
    assert "16 GPUs, native rescaling" in page
    assert "data:image/svg+xml;base64," in page
    assert "http" not in page.replace("http-equiv", "")  # nothing to load
    # again: nothing is left to do, and what is said is the same, now as a table
    code, out, err = ones(
        "compare", "--policies", "fifo,equi", *TINY, "--mechanism", "native", "--mechanism",
        "elastic", "--first-seed", "7", "--set", "fifo.backfill=true", "--out", "out",
    )  # fmt: skip
    assert code == 0
    assert "8 runs, 8 of them already stored" in err
    assert "equi" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "fifoo"], "unknown policy 'fifoo'"),
        (["--policies", "fifo", "--gpus", "many"], "--gpus: 'many' is not a list of whole numbers"),
        (["--policies", "fifo", "--gpus", "0"], "--gpus: 0 is not above 0"),
        (["--policies", "fifo", "--seeds", "0"], "--seeds: 0 is not at least 1"),
        (["--policies", "fifo", "--processes", "0"], "--processes: 0 is not at least 1"),
        (["--policies", "fifo", "--load", "nan"], "--load: nan is not above 0"),
        (["--policies", "fifo", "--mechanism", "x"], "unknown mechanism 'x'"),
        (["--policies", "fifo", "--requests", "huge"], "unknown mix of requested GPUs 'huge'"),
        (["--policies", "fifo", "--workload", "no.csv"], "no.csv: cannot be read"),
        (["--policies", "fifo", "--set", "fifo.backfill=perhaps"], "'perhaps' is not true or"),
        (["--policies", "fifo", "--physics", "nose=2"], "unknown part of the physics 'nose'"),
        (["--policies", "fifo", "--physics", "noise=-1"], "noise: -1 is not a number above 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(ones: Ones, arguments: list[str], message: str) -> None:
    code, out, err = ones("compare", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("ones: ")
    assert message in err
    assert err.count("\n") == 1


def test_all_policies_run_on_both_workloads_of_a_quick_comparison(
    ones: Ones, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ones.policies.names", lambda: ["fifo", "sjf"])
    code, out, _ = ones(
        "compare", "--policies", "all", "--quick", "--jobs", "3", "--processes", "1", "--json"
    )
    assert code == 0
    rows = json.loads(out)["rows"]
    found = {(row["policy"], row["workload"], row["seed"], row["gpus"]) for row in rows}
    assert found == {
        (policy, workload, seed, 64)
        for policy in ("fifo", "sjf")
        for workload in ("paper", "paper-artifact")
        for seed in (1000, 1001, 1002)
    }
    code, out, _ = ones(
        "compare", "--policies", "fifo", "--workload", "paper,paper-artifact", "--seeds", "1",
        "--jobs", "3", "--processes", "1",
    )  # fmt: skip
    assert code == 0
    assert "paper-artifact" in out


def test_perturbed_physics_are_shown(ones: Ones, tmp_path: Path) -> None:
    code, out, _ = ones(
        "compare", "--policies", "equi", "--seeds", "1", "--jobs", "3", "--gpus", "16",
        "--mechanism", "elastic", "--physics", "rescale=10", "--physics", "noise=1",
        "--processes", "1", "--out", "out", "--json",
    )  # fmt: skip
    assert code == 0
    told = json.loads(out)
    assert told["summary"][0]["physics"] == told["rows"][0]["physics"] == {"rescale": 10.0}
    assert "rescale x10" in (tmp_path / "out" / "index.html").read_text()


TRACE = "at,id,model,gpus\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.csv: is empty"),
        (TRACE, "bad.csv: holds no job"),
        ("at,id,modle\n0,a,vgg16-imagenet\n", "bad.csv:1: unknown column 'modle'"),
        (TRACE + "-3,a,vgg16-imagenet,1\n", "bad.csv:2: at: -3 is not at least 0"),
        (TRACE + "0,a,vgg16-imagenet,1\n5,b,vgg16-imagenet,99\n", "bad.csv:3: gpus: job b:"),
        (
            TRACE.strip() + ",target_accuracy\n0,a,vgg16-imagenet,1,0.99\n",
            "bad.csv:2: target_accuracy: 0.99 is never reached",
        ),
    ],
)
def test_a_bad_trace_is_named_with_file_line_and_field(
    ones: Ones, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bad.csv").write_text(text)
    for command in (["sim", "--policy", "fifo"], ["compare", "--policies", "fifo"]):
        code, _, err = ones(*command, "--workload", "bad.csv", "--gpus", "16")
        assert code == 2
        assert message in err
        assert err.count("\n") == 1


def test_jobs_that_cannot_finish_are_counted_and_named(ones: Ones, tmp_path: Path) -> None:
    """All nodes are lost, and none comes back."""
    (tmp_path / "lost.csv").write_text(
        "event,at,id,model,gpus,node\nsubmit,0,a,vgg16-imagenet,1,\nnode-down,9,,,,n0\n"
    )
    code, out, err = ones(
        "compare", "--policies", "fifo", "--seeds", "1", "--gpus", "4", "--workload", "lost.csv",
        "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["rows"][0]["unfinished"] == 1
    assert "fifo, seed 1000, 4 GPUs, native: 1 job unfinished" in err
