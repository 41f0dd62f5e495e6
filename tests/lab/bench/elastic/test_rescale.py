"""`ones bench rescale`: its sizes, and that it measures."""

from __future__ import annotations

from typing import Any

import pytest

from docs.reference.results import RESCALE_ROW_KEYS
from ones.lab.bench.elastic.rescale import bench_rescale, paper_sizes


def test_the_sizes_of_the_paper() -> None:
    sizes = paper_sizes()
    assert (min(sizes), max(sizes)) == (25.0, 537.0)


def _plain(row: dict[str, Any]) -> set[str]:
    return {key.removesuffix("_low").removesuffix("_high") for key in row}


@pytest.mark.soak
def test_a_tiny_job_is_paused_and_restarted() -> None:
    rows = bench_rescale([0.3], repeats=1, chain=(1, 2, 1))
    assert {(row["change"], row["rival"]) for row in rows} == {
        (change, rival) for change in ("1->2", "2->1") for rival in ("checkpoint", "zygote")
    }
    for row in rows:
        assert row["pause_ms"] > 0
        assert row["n"] == 1
        assert row["rival_steps_lost"] == 0
        assert _plain(row) == set(RESCALE_ROW_KEYS)


@pytest.mark.soak
def test_a_pause_is_shorter_than_a_restart_and_its_parts_add_up() -> None:
    for row in bench_rescale([0.3], repeats=1, chain=(1, 2, 1)):
        parts = ("agree_ms", "connect_ms", "state_ms", "resume_ms")
        assert 0 < row["pause_ms"] < row["rival_pause_ms"]
        assert row["ratio"] > 1
        assert sum(row[part] for part in parts) == pytest.approx(row["pause_ms"], abs=50)
