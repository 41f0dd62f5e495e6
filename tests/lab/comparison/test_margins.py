"""Margins over rivals: pairs, tables and sentences; and the frontier of a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.lab.comparison.frontier import has_frontier
from ones.lab.comparison.grid import Cell, Grid
from ones.lab.comparison.margins import margins_of, sentence_of, table_of
from ones.lab.comparison.page import write_page
from ones.lab.comparison.results import Comparison
from ones.lab.comparison.summary import Record, summary_of
from ones.lab.comparison.tasks import run_task
from ones.lab.comparison.variants import parse_variants
from ones.lab.runs import RunSpec
from ones.report import statistics


def record(label: str, seed: int, times: list[float], load: float | None = None) -> Record:
    policy = label.partition(":")[0]
    cell = Cell(label=label, asked="elastic", spec=RunSpec(policy=policy, seed=seed, load=load))
    mean = sum(times) / len(times)
    row = {"mean_jct": mean, "jobs": len(times), "seed": seed, "policy_cpu_seconds": 1.0}
    jobs = {"id": [f"j{i}" for i in range(len(times))]} | {
        time: times for time in ("completion", "execution", "queueing")
    }
    return Record(cell, {"row": row, "jobs": jobs, "changes": {"size": 0, "batch": 0}})


RECORDS = [
    record("ones", 1, [80.0, 100.0]), record("ones", 2, [90.0, 90.0]),
    record("ones:slow", 1, [180.0, 200.0]), record("ones:slow", 2, [190.0, 190.0]),
    record("equi", 1, [100.0, 100.0]), record("equi", 2, [100.0, 100.0]),
    record("sia", 1, [200.0, 160.0]), record("sia", 2, [170.0, 190.0]),
]  # fmt: skip


def test_each_of_ours_is_set_against_each_rival() -> None:
    ours, slow = margins_of(RECORDS, "ones")
    assert (ours.label, ours.seeds, ours.mean_jct) == ("ones", 2, 90.0)
    assert {a.rival: a.less_percent for a in ours.against} == pytest.approx(
        {"equi": 10.0, "sia": 50.0}
    )
    assert ours.least_p99_jct == 100.0
    assert ours.pooled_p99_jct == pytest.approx(99.7)
    assert slow.against[0].less_percent == pytest.approx(-90.0)
    low, high = slow.against[1].less_low, slow.against[1].less_high
    assert low <= slow.against[1].less_percent <= high


def test_seeds_that_one_of_them_lacks_do_not_count() -> None:
    """Seed 2 is a hard one: a rival that has not met it yet must not look better for it."""
    hard = [record("ones", 2, [900.0, 900.0]), record("ones", 1, [90.0, 90.0])]
    (margin,) = margins_of([*hard, record("equi", 1, [100.0, 100.0])], "ones")
    assert (margin.seeds, margin.mean_jct) == (1, 90.0)
    assert margin.against[0].less_percent == pytest.approx(10.0)
    assert margin.mean_jct_low is None


def test_tables_have_a_column_for_what_varies_and_sentences_name_the_worst() -> None:
    margins = margins_of(RECORDS, "ones")
    table = table_of(margins)
    assert table.heads[:3] == ["scheduler", "seeds", "mean s (95 %)"]
    assert "load" not in table.heads
    assert table.rows[0][0] == "`ones`"
    assert len(table.rows) == 2
    assert {len(row) for row in table.rows} == {len(table.heads)}
    sentence = sentence_of(margins)
    assert "Ahead of every rival in 1 of 2 rows" in sentence
    assert "-90.0 %: `ones:slow` over `equi`" in sentence
    loads = [record(label, 1, [50.0], load) for label in ("ones", "equi") for load in (0.5, 0.8)]
    assert table_of(margins_of(loads, "ones")).heads[0] == "load"
    assert sentence_of([]) == "Nothing to compare with yet."
    alone = margins_of([record("ones", 1, [50.0], 2.0)], "ones")
    assert "Ahead of every rival in 1 of 2 rows" in sentence_of([*margins, *alone]), "not of 3"


def test_a_setting_draws_a_line_on_the_page_of_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["ones:a0", "ones", "ones:a9", "fifo"]
    cells = Grid(
        variants=parse_variants(labels, given=["ones:a0.ageing=0", "ones:a9.ageing=9"]),
        seeds=[5],
        gpus=[8],
        base=RunSpec(policy="", jobs=3),
    ).cells()
    records = [Record(cell, run_task(cell.task, cell.spec)) for cell in cells]
    rows = summary_of(records)
    assert has_frontier(rows)
    assert not has_frontier(rows[1:])
    assert all(row["pooled_p99_jct"] >= row["mean_jct"] for row in rows)
    monkeypatch.setattr(statistics, "DRAWS", 50)
    page = write_page(Comparison(records, []), tmp_path).read_text()
    assert "left and low is good" in page
    assert (tmp_path / "figures" / "frontier-1.svg").exists()
