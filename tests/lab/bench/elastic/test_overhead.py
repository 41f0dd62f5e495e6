"""`ones bench overhead`: its interval, and that it measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from docs.reference.results import OVERHEAD_ROW_KEYS
from ones.lab.bench.elastic.overhead import bench_overhead, more_percent


def test_an_interval_of_paired_ratios() -> None:
    rival = np.array([1.0, 2.0, 4.0, 8.0] * 10)
    noise = np.tile([1.0, 1.1], 20)
    middle, low, high = more_percent(rival * noise, rival)
    assert low <= middle <= high
    assert low >= 0.0
    assert high <= 10.0 + 1e-9


def _plain(row: dict[str, Any]) -> set[str]:
    return {key.removesuffix("_low").removesuffix("_high") for key in row}


@pytest.mark.soak
def test_steps_of_two_workers_are_compared_with_ddp() -> None:
    (row,) = bench_overhead(["cnn"], [2], starts=2, pairs=2, steps=3)
    assert row["n"] == 4
    assert row["step_ms"] > 0
    assert row["rival_step_ms"] > 0
    assert row["overhead_percent_low"] <= row["overhead_percent"] <= row["overhead_percent_high"]
    assert row["elastic_us_per_step"] > 0
    assert _plain(row) == set(OVERHEAD_ROW_KEYS)


@pytest.mark.soak
def test_elastic_steps_cost_less_than_ten_milliseconds_more() -> None:
    (row,) = bench_overhead(["cnn"], [2], starts=2, pairs=2, steps=3)
    assert 0 < row["elastic_us_per_step"] < 10_000
