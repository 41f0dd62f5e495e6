"""Emulated workers and a real controller: all get their orders, all reports are acknowledged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from docs.bench_tables import markdown
from ones.cli.client import Client
from ones.errors import WorldError
from ones.lab.bench.scale.benchmark import bench_scale


def test_a_small_crowd_is_served_and_the_promised_keys_are_there() -> None:
    clients: list[Client] = []

    def connect(url: str, token: str) -> Client:
        clients.append(Client(url, token))
        return clients[-1]

    with ThreadPoolExecutor() as thread:  # an earlier test may have left this one a running loop
        (row,) = thread.submit(bench_scale, connect, [24], per_job=8, seconds=0.5).result()
    for client in clients:
        client._http.close()
    assert (row["workers"], row["jobs"], row["n"], row["wide_workers"]) == (24, 3, 2, 8)
    assert row["reports_per_second"] > 0
    assert 0 < row["paced_reports_per_second"] <= 1.5 * row["paced_offered_per_second"]
    assert 0 < row["plan_fanout_ms"] <= row["plan_fanout_max_ms"]
    assert row["wide_fanout_ms"] > 0
    assert row["peak_mb"] > 0
    (table, *_) = markdown(
        [{"bench": "scale", "commit": "c", "load_average": 1, "rows": [row]}]
    ).split("\n\n")
    assert table.splitlines()[2].startswith("| 24 (3) |")


def test_more_than_may_be_open_is_said() -> None:
    with pytest.raises(WorldError, match="files may be open"):
        bench_scale(Client, [1 << 30], per_job=1)
