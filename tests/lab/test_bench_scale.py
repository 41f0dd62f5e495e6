"""Emulated workers against a real controller: all of them are told, all that they say is heard."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ones.cli.client import Client
from ones.core import Allocation, Gpu, JobId, NodeId, Plan
from ones.core import events as ev
from ones.core.job import Generation
from ones.core.plan import Rescale, Start
from ones.errors import WorldError
from ones.lab.bench_scale import bench_scale
from ones.lab.bench_scale_ray import times_in
from ones.lab.bench_tables import markdown


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


def test_what_a_run_took_is_read_from_its_log() -> None:
    a, b, n0 = JobId("a"), JobId("b"), NodeId("n0")
    one, two = Gpu(n0, 0), Gpu(n0, 1)

    def on(*gpus: Gpu) -> Allocation:
        return Allocation.even(gpus, 8)

    log: list[ev.Event | Plan] = [
        Plan(number=1, at=10.0, actions=(Start(a, on(one, two)),)),
        ev.WorkerReady(11.0, a, Generation(1), one),
        ev.WorkerReady(12.5, a, Generation(1), two),
        Plan(number=2, at=20.0, actions=(Rescale(a, on(one)), Start(b, on(two)))),
        ev.Rescaled(21.0, a, Generation(2), 0.25),
        ev.WorkerReady(24.0, b, Generation(2), two),
        ev.Rescaled(30.0, a, Generation(2, 1), 9.0),  # after a loss: nobody had ordered it
    ]
    assert times_in(log) == ([2.5, 4.0], [1.0], [0.25])


def test_more_than_may_be_open_is_said() -> None:
    with pytest.raises(WorldError, match="files may be open"):
        bench_scale(Client, [1 << 30], per_job=1)
