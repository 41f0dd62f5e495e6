"""Whole runs of the paper's workload, measured."""

from __future__ import annotations

from docs.reference.results import BENCH_ROW_KEYS
from ones.lab.bench.sim import bench_paper


def test_each_policy_has_its_row_beside_fifo() -> None:
    said: list[str] = []
    fifo, equi = bench_paper(["equi", "fifo"], progress=said.append)
    assert (fifo["policy"], equi["policy"]) == ("fifo", "equi")
    assert len(said) == 2
    for row in (fifo, equi):
        assert set(row) == set(BENCH_ROW_KEYS)
        assert (row["gpus"], row["jobs"], row["event"], row["rival"]) == (64, 50, "all", "fifo")
        assert row["n"] > 1000
        assert row["wall_seconds"] >= 0
    assert fifo["ratio"] == 1.0
    assert equi["ratio"] > 1.0
