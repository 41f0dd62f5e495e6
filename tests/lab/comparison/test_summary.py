"""Summaries, paired tests and times of jobs."""

from __future__ import annotations

import pytest

from ones.lab.comparison.summary import pairs_of, significance_of, summary_of
from tests.lab.comparison.cells import cells, done


def test_summary_and_tests_are_of_the_same_jobs_and_seeds() -> None:
    records = done(cells("equi", "fifo", seeds=2))
    summary = summary_of(records)
    assert [row["label"] for row in summary] == ["equi", "fifo"]
    for row, label in zip(summary, ("equi", "fifo"), strict=True):
        means = [r.row["mean_jct"] for r in records if r.cell.label == label]
        assert row["mean_jct"] == pytest.approx(sum(means) / 2)
        assert row["mean_jct_low"] <= row["mean_jct"] <= row["mean_jct_high"]
        assert (row["n"], row["first_seed"], row["jobs"]) == (2, 5, 4)
    (test,) = significance_of(records)
    assert (test["label"], test["against"], test["pairs"], test["seeds"]) == ("equi", "fifo", 8, 2)
    equi, fifo = (row["mean_jct"] for row in summary)
    assert test["completion_reduction_percent"] == pytest.approx(100 * (1 - equi / fifo))
    by_label = {r.cell.label: [r] for r in records if r.cell.spec.seed == 6}
    pairs = pairs_of(by_label["equi"], by_label["fifo"], "queueing")
    assert pairs.seeds == [6] * 4
    assert pairs.first == by_label["equi"][0].result["jobs"]["queueing"]


def test_times_of_jobs_add_up_and_changes_are_counted() -> None:
    fifo, equi = done(cells("fifo", "equi", seeds=1))
    for record in (fifo, equi):
        jobs = record.result["jobs"]
        assert len(jobs["id"]) == record.row["finished"] == 4
        for whole, run, wait in zip(
            jobs["completion"], jobs["execution"], jobs["queueing"], strict=True
        ):
            assert whole == pytest.approx(run + wait, abs=1e-5)
        assert record.row["max_exec"] == max(jobs["execution"])
    assert (fifo.row["resized_jobs"], fifo.row["rebatched_jobs"]) == (0, 0)
    assert equi.row["resized_jobs"] > 0
