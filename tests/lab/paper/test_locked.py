"""`ones paper --locked`: its plan, what it refuses, and rows that are adjusted together."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ones.cli import main
from ones.errors import InvalidFileError, UserError
from ones.lab.comparison import time_estimates
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.rows import adjusted, comparison_rows
from ones.lab.paper import contended, locked
from ones.lab.paper.contended import contended_load
from ones.lab.paper.locked import FULL, QUICK, LockedPlan, make_plan, plan_lines, stored_plan
from ones.lab.paper.tuned import CALIBRATION_SEEDS, TUNED, TUNED_CONTENDED
from ones.report import statistics
from ones.report.statistics import holm
from tests.lab.comparison.cells import cells, done


def test_seeds_are_cut_before_rivals(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(FULL, first_seed=2000, processes=2)
    assert locked.MIN_SEEDS <= plan.seeds <= locked.MAX_SEEDS
    assert {cell.spec.seed for cell in plan.cells()} == set(range(2000, 2000 + plan.seeds))
    slow = dict.fromkeys(time_estimates.POLICY_SECONDS, 60.0)
    monkeypatch.setattr(time_estimates, "POLICY_SECONDS", slow)
    less = make_plan(FULL, first_seed=2000, processes=2)
    assert less.seeds < plan.seeds
    assert {cell.label for cell in less.cells()} == {cell.label for cell in plan.cells()}
    lines = plan_lines(less, ResultStore(None), 2)
    assert [line.split(":")[0].strip() for line in lines] == [s.name for s in less.row_sets()]


def test_rivals_are_tuned_and_both_readings_of_optimus_take_part() -> None:
    plan = LockedPlan(commit="abc", first_seed=2000, seeds=1, size=FULL)
    first = {cell.label for cell in plan.row_sets()[0].parts[0].cells(2000)}
    assert {"optimus", "optimus:strict", "drl", "tiresias", "fifo"} <= first
    assert set(TUNED_CONTENDED["native"].values()) <= first
    paper = {cell.label for cell in plan.row_sets()[1].parts[0].cells(2000)}
    assert {*TUNED["native"].values(), "optimus", "optimus:strict"} <= paper
    for part in plan.row_sets()[3].parts:
        (mechanism,) = part.mechanisms
        assert set(TUNED_CONTENDED[mechanism].values()) < set(part.policies)
    assert max(CALIBRATION_SEEDS) < 100 <= locked.FIRST_SEED
    scenarios = {part.scenario for found in plan.row_sets() for part in found.parts}
    assert {"20 % mislabelled", "20 % killed", "lengths within 10 times", "50 % rigid"} < scenarios


def test_a_plan_is_kept_and_belongs_to_one_commit(tmp_path: Path) -> None:
    plan = LockedPlan(commit="abc", first_seed=2000, seeds=4, size=QUICK)
    assert stored_plan(plan, tmp_path, seeds=None) == plan
    # an estimate of more seeds does not change a plan that has begun
    assert stored_plan(replace(plan, seeds=7), tmp_path, seeds=None) == plan
    for other, seeds in ((replace(plan, size=FULL), None), (replace(plan, seeds=7), 7)):
        with pytest.raises(UserError, match="holds a plan of other seeds or sizes"):
            stored_plan(other, tmp_path, seeds=seeds)
    with pytest.raises(UserError, match="its runs are of commit abc, this is xyz"):
        stored_plan(replace(plan, commit="xyz"), tmp_path, seeds=None)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InvalidFileError, match="is not a plan"):
        stored_plan(plan, tmp_path, seeds=None)


def test_options_of_the_page_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ones", "paper", "--locked", "--sweeps", "out"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "ones: --sweeps: adds to the page, which --locked does not write\n"
    )


def test_holm_adjusts_by_rank_and_keeps_the_order() -> None:
    assert holm([]) == []
    assert holm([0.02]) == [0.02]
    assert holm([0.01, 0.02, 0.5]) == pytest.approx([0.03, 0.04, 0.5])
    assert holm([0.03, 0.04, 0.5]) == pytest.approx([0.09, 0.09, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_rows_are_adjusted_over_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 20)
    records = done(cells("equi", "fifo", "tiresias"))
    rows = comparison_rows(records, ["equi"], scenario="usual")
    assert [(row.label, row.rival) for row in rows] == [("equi", "fifo"), ("equi", "tiresias")]
    both = adjusted([*rows, *rows])
    assert all(a.p_holm == min(1.0, 4 * a.p) for a in both)
    assert rows[0].figures["mean_jct"] < rows[0].rival_figures["mean_jct"]
    assert rows[0].less_percent > 0
    assert replace(rows[0], p_holm=0.01).result == "faster"
    slower = replace(rows[0], p_holm=0.01, less_percent=-1.0, effect=0.5)
    assert slower.result == "slower"
    assert replace(slower, effect=-0.5).result == "-", "most jobs are faster, the mean is slower"
    assert replace(rows[0], p_holm=0.06).result == "-"


def test_the_load_is_the_smallest_at_which_jobs_queue_and_order_matters() -> None:
    def row(load: float, label: str, jct: float, queue: float) -> dict[str, object]:
        return {"load": load, "label": label, "mean_jct": jct, "mean_queue": queue}

    summary = [
        row(1.2, "fifo", 800, 300), row(1.2, "tiresias", 500, 50),
        row(1.0, "fifo", 640, 164), row(1.0, "tiresias", 485, 36),
        row(0.9, "fifo", 569, 109), row(0.9, "tiresias", 471, 20),
    ]  # fmt: skip
    assert contended_load(summary) == contended.LOAD == 1.0
    assert contended_load(summary[4:]) is None  # 19 % of queueing
    alike = [row(1.3, "fifo", 259, 56), row(1.3, "tiresias", 248, 45)]
    assert contended_load(alike) is None
    assert contended_load(alike, min_difference=0.0) == contended.LOAD_WITHOUT


def test_the_command_prints_a_plan_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 20)
    monkeypatch.setattr(locked, "OURS", ("equi",))
    monkeypatch.setattr(locked, "commit_of_checkout", lambda: "abc")
    monkeypatch.setattr(locked, "native_labels", lambda tuned: ["fifo"])
    monkeypatch.setattr(locked, "SCHEDULERS", ("fifo",))
    few = locked.row_sets(replace(QUICK, jobs=4, headline_jobs=2), 2)[:2]
    monkeypatch.setattr(locked, "row_sets", lambda size, seeds: few)

    def run(*arguments: str) -> tuple[str, str]:
        words = ["ones", "paper", "--locked", "--quick", "--processes", "1", *arguments]
        monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path)])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        return capsys.readouterr()

    out, err = run("--seeds", "2")
    assert "plan: seeds 1 to 2, commit abc; 8 runs: about" in err
    assert "contended: 4 runs, 4 to do" in err
    assert "Holm's correction over 2 rows" in out
    # the rest after an interruption: one run is missing
    lines = (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[:-1]))
    again, err = run("--json")
    assert "8 runs, 7 of them already stored" in err
    result = json.loads(again)
    assert [row["set"] for row in result["rows"]] == ["contended", "paper"]
    assert {"p", "p_holm", "less_percent", "result", "figures"} <= set(result["rows"][0])
    assert result["plan"]["seeds"] == 2
    assert (tmp_path / "locked.md").read_text() == out
