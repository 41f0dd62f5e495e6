"""`ones bench control`: what it computes, and that it measures all it promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ones.cli.client import Client
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.job import Generation, Job, JobId, SwitchCost
from ones.lab.bench_control import QUICK, bench_control
from ones.lab.bench_control_service import (
    cpu_seconds,
    freed_seconds,
    memory_mb,
    own_memory_mb,
    percentile_ms,
)
from ones.runlog import VERSION, Header, LogWriter, RunLog

PROMISED = (
    "submits_per_second", "submit_p99_ms", "decision_to_order_ms", "submit_to_first_step_seconds",
    "restart_seconds", "idle_cpu_percent", "idle_mb",
)  # fmt: skip


def test_a_gpu_is_free_for_the_job_that_waited_for_it(tmp_path: Path) -> None:
    gpu, path = Gpu(NodeId("n0"), 0), tmp_path / "run.jsonl"

    def submitted(at: float, name: str) -> ev.JobSubmitted:
        return ev.JobSubmitted(at, Job(id=JobId(name), submitted_at=at))

    header = Header(
        version=VERSION, software="0", policy="fifo", seed=0, nodes=(), switch_cost=SwitchCost()
    )
    with LogWriter(path, header) as log:
        for event in (
            submitted(0.0, "a"),
            ev.WorkerReady(1.0, JobId("a"), Generation(1), gpu),
            submitted(2.0, "b"),
            ev.WorkerLeft(5.0, JobId("a"), Generation(1), gpu),
            ev.WorkerReady(5.25, JobId("b"), Generation(2), gpu),
            ev.WorkerLeft(7.0, JobId("b"), Generation(2), gpu),
            submitted(8.0, "c"),  # nobody waited for this GPU
            ev.WorkerReady(8.5, JobId("c"), Generation(3), gpu),
        ):
            log(event)
    assert freed_seconds(RunLog(path)) == [0.25]


def test_a_process_is_measured() -> None:
    me = os.getpid()
    assert 10 < own_memory_mb(me) <= memory_mb(me)
    before = cpu_seconds(me)
    while cpu_seconds(me) == before:
        pass
    assert percentile_ms([0.1] * 99 + [10.0], 50) == 100.0


@pytest.mark.slow
def test_all_that_is_promised_is_measured() -> None:
    rows = bench_control(Client, QUICK)
    found = {key: row[key] for row in rows for key in PROMISED if key in row}
    assert set(found) == set(PROMISED)
    assert all(value >= 0 for value in found.values())
    assert found["submits_per_second"] > 1
    assert 30 < found["idle_mb"] < 1000
    crowd = next(row for row in rows if "workers" in row)
    assert QUICK.jobs <= crowd["workers"] <= QUICK.slots
    assert crowd["reports_per_second"] > 0
    freed = next(row for row in rows if "freed_to_worker_ms" in row)
    assert freed["n"] >= 5 * QUICK.repeats - 1
