"""Times of GPUs that change hands, from a run log."""

from __future__ import annotations

from pathlib import Path

from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.job import Generation, Job, JobId, SwitchCost
from ones.lab.bench.control.service import freed_seconds
from ones.runlog import VERSION, Header, LogWriter, RunLog


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
            submitted(8.0, "c"),  # no job waited for this GPU
            ev.WorkerReady(8.5, JobId("c"), Generation(3), gpu),
        ):
            log(event)
    assert freed_seconds(RunLog(path)) == [0.25]
