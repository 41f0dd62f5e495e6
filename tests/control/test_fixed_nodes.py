"""Fixed-size jobs on several GPUs and on several nodes: their processes are one job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ones.control.live.jobs import NOW, LiveJob
from ones.control.live.node_layout import NodeLayout
from ones.control.submission import Submission
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.job import Job, JobId
from ones.exec import Exit
from ones.launchers import Exited
from tests.control.by_hand import CLEAN, ByHand
from tests.control.world import World
from tests.processes import wait_for
from tests.slurm import PATIENT, SlurmCluster, end_managers, slurm_cluster

__all__ = ["slurm_cluster"]

A = JobId("a-1")
STOPPED = Exit(code=None, signal=15, at=0.0, cause="stopped")
SCRIPT = """
import os
import torch
import torch.distributed as dist
import ones
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
for step in range(20):
    ones.progress(step + 1, 20)
names = ("NODE_RANK", "NNODES", "LOCAL_WORLD_SIZE")
words = " ".join(os.environ[name] for name in names)
os.write(1, f"rank {dist.get_rank()} of {int(total)}: {words}\\n".encode())
dist.destroy_process_group()
"""


def test_a_layout_names_the_first_node_and_each_nodes_part() -> None:
    gpus = [Gpu(NodeId("b"), 0), Gpu(NodeId("b"), 1), Gpu(NodeId("a"), 3)]
    layout = NodeLayout.of(gpus, {"a": "10.0.0.1", "b": "10.0.0.2"}, plan=7)
    second = layout.environment(NodeId("a"))
    assert layout.environment(NodeId("b")) == {
        **second, "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0", "NODE_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip
    assert second == {
        "PET_NPROC_PER_NODE": "1", "PET_NNODES": "2", "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.2", "PET_MASTER_PORT": "20007",
        "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "20007",
        "NNODES": "2", "NODE_RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1",
    }  # fmt: skip
    alone = NodeLayout.of(gpus[:2], {}, plan=7).environment(NodeId("b"))
    assert alone == {"PET_NPROC_PER_NODE": "2", "PET_STANDALONE": "1"}


@pytest.fixture(params=[("n0",), ("n0", "n1")], ids=["one node", "two nodes"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ByHand]:
    """A job with a process on each node, and two GPUs in all."""
    nodes = request.param
    bench = ByHand(tmp_path, slots=2 // len(nodes), nodes=nodes)
    submission = Submission(name=A, argv=("x",), cwd="/", elastic=False, env={"NNODES": "mine"})
    bench.engine.live.jobs[A] = LiveJob(A, submission)
    given = Job(id=A, submitted_at=0.0, min_gpus=2, max_gpus=2, elastic=False, retries=1)
    bench.engine.live.emit(ev.JobSubmitted(NOW, given))
    bench.turn()
    yield bench
    bench.close()


def run(bench: ByHand) -> list[str]:
    """Lets its processes run; their launches."""
    launches = list(bench.engine.live.jobs[A].workers)
    for launch in launches:
        bench.engine.exits.started(launch)
    bench.turn()
    record = bench.scheduler.state.records[A]
    assert record.in_flight is None
    assert record.held is not None
    return launches


def end(bench: ByHand, launch: str, exit: Exit) -> str:
    """Ends a process; the reason of the job's end, if it ends."""
    bench.engine.on_launcher(Exited(launch, exit))
    ends = [e.reason.value for e in bench.turn() if isinstance(e, ev.JobEnded)]
    return ends[-1] if ends else ""


def test_a_job_that_crashes_fails_after_its_retries(bench: ByHand) -> None:
    crash = Exit(code=1, at=0.0, cause="exited")
    for failures, exit in ((1, crash), (2, STOPPED)):
        first, *others = run(bench)
        reasons = [end(bench, first, crash)]
        # the others fail with it, or are stopped
        wait_for(lambda others=others: set(others) <= set(bench.launcher.stopped))  # type: ignore[misc]
        reasons += [end(bench, launch, exit) for launch in others]
        if failures == 1:
            assert bench.scheduler.state.records[A].failures == 1
    assert "failed" in reasons


def test_a_job_is_done_when_all_its_processes_are(bench: ByHand) -> None:
    *others, last = run(bench)
    for launch in others:
        assert not end(bench, launch, CLEAN)
    bench.engine._deadlines.check(bench.engine.live.clock.now() + 1e6)
    assert not [e for e in bench.turn() if isinstance(e, ev.WorkerLost)]
    assert end(bench, last, CLEAN) == "finished"


def test_each_node_gets_the_variables_of_its_part(bench: ByHand) -> None:
    launches = bench.launcher.started
    wait_for(lambda: len(launches) == len(bench.engine.live.jobs[A].workers))
    found = [(launch.env["PET_NPROC_PER_NODE"], launch.env.get("NODE_RANK")) for launch in launches]
    assert found in ([("2", None)], [("1", "0"), ("1", "1")])
    assert {launch.env["NNODES"] for launch in launches} == {"mine"}, (
        "the user's own has precedence"
    )


# as in test_fixed_progress.py: a rank may abort in destroy_process_group
@pytest.mark.soak
def test_torchrun_spans_the_nodes_of_a_slurm_cluster(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation = slurm_cluster.allocate("--nodes=2", "--ntasks=2")
    monkeypatch.setenv("SLURM_JOB_ID", allocation)
    monkeypatch.setenv("ONES_SLURM_TIMING", PATIENT.to_text())
    world = World(tmp_path, launcher="slurm", slots=None)
    world.up()
    try:
        script = tmp_path / "train.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", str(script)]
        job = world.run(command, gpus=2, env={**os.environ, "OMP_NUM_THREADS": "1"})
        card = world.wait_end(job, seconds=300.0)
        assert card["state"] == "finished", world.evidence(job)
        lines = [line for line in world.output(job).splitlines() if line.startswith("rank")]
        assert sorted(lines) == ["rank 0 of 2: 0 2 1", "rank 1 of 2: 1 2 1"]
        assert card["epochs"] == 20
    finally:
        world.down()
        end_managers(world.dir.runs)
        slurm_cluster.cancel(allocation)
