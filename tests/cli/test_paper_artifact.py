"""`ones paper artifact`: its JSON, its table, and wrong directories in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ones.cli import main
from ones.lab.paper.artifact import read_artifact_panel
from ones.lab.paper.artifact_checks import Check, strongest_rivals, target_checks
from ones.lab.paper.authors_claims import AUTHORS

HEADER = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus"
ROWS = (
    "0,resnet18,cifar,20000,10,256,0.005,0.08,0.7,4",
    "5,googlenet,cifar,20000,10,256,0.005,0.08,0.7,4",
    "9,alexnet,imagenet,10000,20,64,2.50E-04,0.004,0.25,16",
)
SMALL = ("--policies", "fifo,tiresias", "--jobs", "3", "--seeds", "1", "--processes", "1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    home = tmp_path / "data"
    home.mkdir()
    (home / "trace_1.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")
    for figures in AUTHORS.values():
        (home / figures.file).write_text(
            "id,completion_time,execution_time,waiting_time\n0,100,60,40\n1,300,200,100\n"
        )
    return home


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ones", "paper", "artifact", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


def test_the_json_has_rows_targets_and_checks_of_the_set_up(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out_dir = tmp_path / "out"
    arguments = ("--data", str(data), "--out", str(out_dir), *SMALL)
    code, out, err = run(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    result: dict[str, Any] = json.loads(out)
    assert [row["policy"] for row in result["rows"]] == ["fifo", "tiresias"]
    for row in result["rows"]:
        assert row["mean_jct"] == pytest.approx(row["mean_exec"] + row["mean_queue"])
        assert {"median_jct", "within_200s", "p90_jct", "max_jct", "n"} <= row.keys()
    assert len(result["targets"]) >= 12
    for check in (*result["targets"], *result["setup"]):
        assert check.keys() == {"name", "value", "low", "high", "ok"}
    assert len(result["setup"]) == 20  # lengths; the other checks need the authors' 50 rows
    assert all(check["ok"] for check in result["setup"])
    ours = next(row for row in result["authors"] if row["policy"] == "ones-artifact")
    assert (ours["mean_jct"], ours["mean_queue"], ours["within_200s"]) == (200.0, 70.0, 0.5)
    assert 0 < result["least_mean_exec"] < min(row["mean_exec"] for row in result["rows"])
    assert (out_dir / result["figure"]).exists()
    assert read_artifact_panel(out_dir).anchor == "artifact"
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert "2 of them already stored" in err
    assert "the authors' files" in out
    assert "The ids of the authors' result files are not rows of the trace" in err


def test_without_data_the_figures_stand_for_the_files_and_the_generator_for_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--policies", "fifo", "--jobs", "2", "--quick", "--processes", "1")
    code, out, _ = run(monkeypatch, capsys, "--out", str(tmp_path / "out"), *small, "--json")
    assert code == 0
    result = json.loads(out)
    assert {row["policy"]: row["mean_jct"] for row in result["authors"]} == {
        "ones-artifact": 214.0, "drl": 354.0, "optimus": 452.9, "tiresias": 501.7,
    }  # fmt: skip
    assert result["trace"] == "paper-artifact seed 1000"


def test_wrong_input_is_one_line_and_exit_2(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        code, _, err = run(monkeypatch, capsys, "--out", str(tmp_path / "o"), *SMALL, *arguments)
        assert code == 2
        return err.replace(f"{tmp_path}/", "")

    given = ("--data", str(data))
    assert refused("--data", str(tmp_path / "no")) == (
        "ones: no: does not exist; --data needs the authors' data files\n"
    )
    trace = (data / "trace_1.csv").read_text()
    (data / "trace_1.csv").write_text("time,model\n0,resnet18\n")
    assert refused(*given) == "ones: data/trace_1.csv:1: batch_size: the column is missing\n"
    (data / "trace_1.csv").write_text(trace)
    (data / "DRL_profile.csv").write_text(
        "id,completion_time,execution_time,waiting_time\n0,soon,1,1\n"
    )
    assert refused(*given) == (
        "ones: data/DRL_profile.csv:2: completion_time: 'soon' is not a number of seconds\n"
    )
    (data / "DRL_profile.csv").unlink()
    assert refused(*given) == (
        "ones: data/DRL_profile.csv: is missing; --data needs the authors' data files\n"
    )
    assert refused("--seeds", "0") == "ones: --seeds: 0 is not at least 1\n"
    assert refused("--policies", "none") == ("ones: unknown policy 'none'; did you mean 'ones'?\n")


def test_a_check_is_open_without_a_value_or_a_range() -> None:
    assert Check(name="", value=2.0, low=1.0, high=2.0).ok is True
    assert Check(name="", value=2.1, low=1.0, high=2.0).ok is False
    assert Check(name="", value=None, low=1.0, high=2.0).ok is None
    assert Check(name="", value=2.0).ok is None


def test_the_stronger_variant_stands_for_a_rival() -> None:
    rows = {
        "ones-artifact": {"mean_jct": 200.0},
        "tiresias": {"mean_jct": 600.0},
        "tiresias:published": {"mean_jct": 400.0},
    }
    strongest = strongest_rivals(rows)
    assert strongest == {"tiresias": "tiresias:published"}
    found = {check.name: check for check in target_checks({}, rows, strongest)}
    assert found["mean completion, ones-artifact / tiresias"].value == 0.5
    assert found["mean completion, ones-artifact / tiresias"].ok is True
    assert found["mean completion, ones-artifact / drl"].ok is None
    assert found["tiresias: mean completion, s"].value == 400.0
