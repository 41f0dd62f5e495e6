"""The service on a Ray cluster with parts that die one after the other: all jobs end, once."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.control.world import World, ends_told
from tests.processes import Gate, alive_below, children_of, command_of, is_alive, wait_for
from tests.rays import RayCluster

pytestmark = pytest.mark.soak

SCRIPT = """
import os, sys, time, torch, ones
torch.manual_seed(0)
x = torch.randn(256, 16)
y = (x.sum(1) > 0).long()
model = torch.nn.Linear(16, 2)
data = torch.utils.data.TensorDataset(x, y)
job = ones.join(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=32)
for epoch in job.epochs(int(sys.argv[1])):
    for a, b in job.batches():
        time.sleep(0.02 if os.path.exists("hurry") else 0.5)
        job.step(torch.nn.functional.cross_entropy(model(a), b))
    print("epoch", epoch, flush=True)
"""
LONG = 300.0  # torch is imported many times on a machine that may be busy
LEASE = 8.0
TRAINED, PACED = 60, 6  # epochs


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    cluster = RayCluster(tmp_path / "ray")
    cluster.start()
    try:
        for name in ("n1", "n2"):
            cluster.do("add", name, "--slots", "2")
        yield cluster
    finally:  # also if its nodes do not start
        cluster.stop()


@pytest.fixture
def world(cluster: RayCluster, tmp_path: Path) -> Iterator[World]:
    world = World(
        tmp_path / "world",
        slots=None,
        policy="equi",
        launcher="ray",
        launchers={
            "ray": {
                "address": cluster.address,
                "slots": "ones",
                "node_dir": str(tmp_path / "world" / "nodes"),
                "lease_seconds": LEASE,
            }
        },
    )
    world.root.mkdir()
    world.up()
    yield world
    world.down()


def nodes(world: World, state: str) -> set[str]:
    """By the names that they were given."""
    found = world.get("/api/cluster")["nodes"]
    return {n["name"].rpartition("-")[0] for n in found if n["state"] == state}


def busy(world: World, node: str) -> list[str]:
    slots = world.get("/api/cluster")["slots"]
    return [s["job"] for s in slots if s["node"].startswith(f"{node}-") and s["job"]]


def wait_until(world: World, what: str, node: str) -> None:
    wait_for(lambda: node in nodes(world, what), f"{node} is not {what}: {world.log()}", LONG)


def wait_busy(world: World, node: str) -> None:
    wait_for(lambda: busy(world, node), f"no worker is on {node}", LONG)


def processes_on(world: World, node: str) -> list[int]:
    (directory,) = (world.root / "nodes").glob(f"*/{node}-*")
    # ones-exec itself and what it keeps warm may take a moment longer: they hold no slot
    workers = [
        int(json.loads(status.read_text())["pid"])
        for status in directory.glob("live/*/*/*/status.json")
    ]
    return [pid for pid in workers if pid in alive_below(directory)]


def driver_of(world: World) -> int:
    """0: it is being started."""
    assert world.process is not None
    for pid in children_of(world.process.pid):
        if any(b"ray.driver" in word for word in command_of(pid)):
            return pid
    return 0


def test_all_jobs_end_whatever_dies(world: World, cluster: RayCluster) -> None:
    began = time.monotonic()
    script = world.root / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(TRAINED)]
    trained = [world.run(command, name="train", elastic=True, max_gpus=3) for _ in range(2)]
    hurry = Gate(world.root / "hurry")
    words = (PACED, 1.0, f"end-when={hurry}")
    paced = [world.submit(*words, max_gpus=1, retries=0) for _ in range(4)]

    cluster.do("add", "n3", "--slots", "2")
    wait_until(world, "up", "n3")
    for node in ("n1", "n2", "n3"):
        wait_busy(world, node)

    cluster.do("kill", "n1")
    wait_until(world, "down", "n1")
    assert processes_on(world, "n1") == [], "its slots are given away when nothing is there"

    wait_busy(world, "n2")
    cluster.do("freeze", "n2")
    wait_until(world, "down", "n2")
    assert processes_on(world, "n2") == [], "a frozen node has ended its workers by itself"
    cluster.do("thaw", "n2")
    print(f"{time.monotonic() - began:.0f} s: n2 thawed", flush=True)

    driver = wait_for(lambda: driver_of(world), "no driver", LONG)
    os.kill(driver, signal.SIGKILL)
    wait_for(lambda: driver_of(world) not in (0, driver), "no new driver", LONG)
    world.restart()
    wait_busy(world, "n3")
    assert processes_on(world, "n2") == [], "nothing came back to life"

    cluster.do("kill", "head")
    wait_for(lambda: not is_there(cluster, "n3"), "raylets end without their head", LONG)
    cluster.start("--slots", "6")
    wait_until(world, "up", "head")
    wait_until(world, "down", "n3")

    hurry.open()
    for job, epochs in [*((j, TRAINED) for j in trained), *((j, PACED) for j in paced)]:
        card = world.wait_end(job, seconds=2 * LONG)
        assert card["state"] == "finished", (world.story(job), world.output(job))
        assert (card["epochs"], card["failures"]) == (epochs, 0), world.story(job)
        assert len(ends_told(partial(world.story, job))) == 1
    for job in trained:
        assert world.job(job)["samples"] == TRAINED * 256, "every sample of every epoch, once"
        # it has finished when it says so; its last line and its exit come after that
        last = f"epoch {TRAINED - 1}"
        wait_for(lambda: last in world.output(job), f"{job}: its last line is lost")  # noqa: B023


def is_there(cluster: RayCluster, node: str) -> bool:
    """Does its raylet live?"""
    pid = json.loads((cluster.directory / "cluster.json").read_text())["nodes"][node]
    time.sleep(0.1)
    return is_alive(pid)
