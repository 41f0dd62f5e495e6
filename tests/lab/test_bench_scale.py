"""Emulated workers against a real controller: all of them are told, all that they say is heard."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ones.cli.client import Client
from ones.errors import WorldError
from ones.lab.bench_scale import bench_scale


def test_a_small_crowd_is_served_and_the_promised_keys_are_there() -> None:
    clients: list[Client] = []

    def connect(url: str, token: str) -> Client:
        clients.append(Client(url, token))
        return clients[-1]

    with ThreadPoolExecutor() as thread:  # an earlier test may have left this one a running loop
        (row,) = thread.submit(bench_scale, connect, [16], per_job=8, seconds=0.5).result()
    for client in clients:
        client._http.close()
    assert (row["workers"], row["jobs"], row["n"]) == (16, 2, 2)
    assert row["reports_per_second"] > 0
    assert 0 < row["plan_fanout_ms"] <= row["plan_fanout_max_ms"]
    assert row["peak_mb"] > 0


def test_more_than_may_be_open_is_said() -> None:
    with pytest.raises(WorldError, match="files may be open"):
        bench_scale(Client, [1 << 30], per_job=1)
