"""`ones slurm auto` with a real Slurm: allocations come, are adopted after a restart, and go."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.world import World
from tests.processes import wait_for
from tests.slurm import PATIENT, SlurmCluster, slurm_cluster

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.slow
ONES = str(Path(sys.executable).with_name("ones"))


@pytest.fixture
def world(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("ONES_SLURM_TIMING", PATIENT.to_text())
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    world = World(tmp_path / "world", launcher="slurm", slots=None)
    world.root.mkdir()
    world.up()
    yield world
    world.down()


def ones(world: World, *words: str) -> str:
    done = subprocess.run(
        [ONES, *words, "--dir", str(world.dir.path)],
        capture_output=True, text=True, check=False, env=world.env, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def name_of(world: World) -> str:
    return str(json.loads((world.dir.runs / "auto.json").read_text())["name"])


def test_nodes_come_for_jobs_and_go_without_them(world: World, slurm_cluster: SlurmCluster) -> None:
    def queue(*states: str) -> list[str]:
        return slurm_cluster.run(
            "squeue", "-h", "-n", name_of(world), "-t", ",".join(states or ("all",)), "-o", "%i"
        ).split()

    body = {"command": ["true"], "cwd": "/", "env": {}, "gpus": 1}
    refused = world.post("/api/jobs", body, status=422)["error"]
    assert "gpus 1 is more than the cluster has, 0" in refused
    assert "does not ask Slurm" in ones(world, "slurm", "auto")
    options = ("--slots", "1", "--time", "30m", "--idle", "4s", "--lead", "20")
    never = "--option=--begin=now+1hour"
    said = ones(world, "slurm", "auto", "--max-nodes", "2", *options, never)
    assert "0 of at most 2 nodes, 0:30:00 each" in said
    gate = world.gate()
    job = world.run(["sh", "-c", f"until test -e {gate}; do sleep 0.1; done"], gpus=1)
    (pending,) = wait_for(lambda: queue("PENDING"), world.log())
    wait_for(lambda: world.get("/api/cluster")["slurm_auto"]["pending"])
    assert f"pending: {pending}" in ones(world, "cluster")
    world.post(f"/api/jobs/{job}/hold")
    wait_for(lambda: not queue("PENDING"), "it is not cancelled when no job waits")
    ones(world, "slurm", "auto", "--max-nodes", "2", *options)
    world.post(f"/api/jobs/{job}/release")
    (allocation,) = wait_for(lambda: queue("RUNNING"), world.log())
    world.wait_state(job, "running")
    world.restart()
    wait_for(lambda: world.get("/api/cluster")["slurm_auto"]["running"] == [allocation])
    assert world.job(job)["state"] == "running"
    assert queue("PENDING", "RUNNING") == [allocation], "it is adopted, and not asked for twice"
    gate.open()
    assert world.wait_end(job)["state"] == "finished", world.evidence(job)
    wait_for(lambda: not queue("PENDING", "RUNNING", "COMPLETING"), "it does not end when idle")
    ones(world, "slurm", "auto", "--max-nodes", "1", *options, "--partition", "none")
    world.run(["true"], gpus=1)
    shown = wait_for(lambda: world.get("/api/cluster")["slurm_auto"]["problem"], world.log())
    assert shown.startswith("sbatch: Batch job submission failed: Invalid partition")
    ones(world, "slurm", "auto", "--max-nodes", "1", *options, never)
    wait_for(lambda: queue("PENDING"), world.log())
    name = name_of(world)
    world.stop()
    left = slurm_cluster.run("squeue", "-h", "-n", name, "-o", "%i %T")
    assert left == "", "pending allocations do not outlive the service"
    world.up()
    assert world.get("/api/cluster")["slurm_auto"]["max_nodes"] == 1
    ones(world, "slurm", "auto", "--off")
    assert world.get("/api/cluster")["slurm_auto"] is None
