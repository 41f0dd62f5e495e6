"""Jobs on two hosts with a network between them, which is cut and mended.

The hosts are network namespaces, the second one with pids of its own, too. Workers are started by
agents of the Slurm launcher, which need nothing of Slurm but their arguments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ones.launchers.slurm.node_cleanup import clear_node, leftovers
from tests.control.world import ENV, World, ends_told
from tests.hosts import Host, Network, network, trouble
from tests.processes import wait_for
from tests.slurm import QUICK

pytestmark = pytest.mark.soak

#: each worker locks what stands for its GPU: of two owners the second one would fail, and its job
SCRIPT = """
import fcntl, os, pathlib, sys, time, torch, ones
root = pathlib.Path(sys.argv[1])
gpu = open(root / os.environ["ONES_WORKER"].replace("/", "-"), "w")
fcntl.flock(gpu, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("reached at", os.environ["ONES_HOST"], flush=True)
torch.manual_seed(0)
x = torch.randn(64, 16)
y = (x.sum(1) > 0).long()
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(x, y)
job = ones.join(model, optimizer, data, batch_size=16, max_local_batch=16)
for epoch in job.epochs(int(sys.argv[2])):
    for a, b in job.batches():
        time.sleep(0.0 if (root / "hurry").exists() else 0.3)
        job.step(torch.nn.functional.cross_entropy(model(a), b))
"""
EPOCHS, SAMPLES = 300, 64  # three minutes, but for the hurry
SECONDS = 300.0  # torch is imported many times on a machine that may be busy


class Site:
    """A service on the first host, and agents on both."""

    def __init__(self, world: World, net: Network) -> None:
        self.world, self.net = world, net
        self.near, self.far = net.hosts
        self.agents: list[subprocess.Popen[bytes]] = []
        self.jobs: list[str] = []
        self.gpus = world.root / "gpus"
        self.gpus.mkdir()
        (world.root / "train.py").write_text(SCRIPT)

    def agent(self, node: str, host: Host) -> None:
        """One GPU on that host; returns when the service knows it."""
        words = [str(self.world.dir.runs), "7", node, "0", "0", QUICK.to_text()]
        command = host.command(sys.executable, "-m", "ones.launchers.slurm.agent", *words)
        with (self.world.root / "agents.log").open("ab") as log:
            self.agents.append(subprocess.Popen(command, stdout=log, stderr=log))
        self.wait_nodes("up", node)

    def train(self) -> str:
        command = [sys.executable, str(self.world.root / "train.py"), str(self.gpus), str(EPOCHS)]
        # a worker that is out of reach is given up after 10 s and not after a minute
        env = {**ENV, "ONES_HANG_SECONDS": "10", "OMP_NUM_THREADS": "1"}
        more = {"name": "train", "elastic": True, "max_gpus": 2, "retries": 0}
        self.jobs.append(self.world.run(command, env=env, **more))
        return self.jobs[-1]

    def nodes(self) -> dict[str, str]:
        return {n["name"]: n["state"] for n in self.world.get("/api/cluster")["nodes"]}

    def until(self, what: Callable[[], bool], message: str) -> None:
        began = time.monotonic()
        try:
            wait_for(what, message, SECONDS)
        except AssertionError as problem:
            problem.add_note(self.told())
            raise
        print(f"{time.monotonic() - began:.1f} s until not: {message}", flush=True)

    def wait_nodes(self, state: str, *names: str) -> None:
        self.until(
            lambda: all(self.nodes().get(name) == state for name in names),
            f"{names} are not {state}",
        )

    def wait_on(self, job: str, *nodes: str) -> None:
        """It trains there and nowhere else."""
        self.until(lambda: self.places(job) == set(nodes), f"{job} is not on {nodes}")
        before = self.world.job(job)["epochs"]
        self.until(lambda: self.world.job(job)["epochs"] > before, f"{job} does not train")
        assert self.places(job) == set(nodes), self.world.story(job)

    def places(self, job: str) -> set[str]:
        """Where it trains; not those where its workers are on their way in or out."""
        slots = self.world.get("/api/cluster")["slots"]
        return {slot["node"] for slot in slots if slot["job"] == job and slot["batch"]}

    def told(self) -> str:
        stories = [
            text
            for job in self.jobs
            for text in (job, *self.world.story(job), self.world.output(job))
        ]
        agents = (self.world.root / "agents.log").read_text()
        return "\n".join([str(self.nodes()), *stories, self.world.log(), agents])

    def end(self) -> None:
        self.far.end()  # and all that is there
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for node in self.nodes():
            clear_node(self.world.dir.runs, node)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if why := trouble():
        pytest.skip(why)
    monkeypatch.setenv("ONES_SLURM_TIMING", QUICK.to_text())
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)  # the allocation of other tests is out of reach from here
    with network() as net:
        near = net.hosts[0]
        given = {"launcher": "slurm", "policy": "equi", "host": near.address}
        world = World(tmp_path / "world", **given, slots=None)
        world.root.mkdir()
        with near.inside():
            world.up()
            site = Site(world, net)
            yield site
            site.end()
            world.down()


def test_a_network_outage_costs_a_pause_and_gives_no_gpu_to_two_jobs(
    site: Site,
) -> None:
    world, near, far = site.world, site.near, site.far
    # the first job meets at a store on the near host, the second one at a store on the far host
    site.agent("n1", near)
    one = site.train()
    site.wait_on(one, "n1")
    two = site.train()
    site.agent("n2", far)
    site.wait_on(two, "n2")
    site.agent("n3", far)
    site.wait_on(one, "n1", "n3")
    site.agent("n4", near)
    site.wait_on(two, "n2", "n4")
    for job in (one, two):
        for host in (near, far):
            assert f"reached at {host.address}" in world.output(job)

    site.net.pull(far)
    site.wait_nodes("down", "n2", "n3")
    for node in ("n2", "n3"):
        assert leftovers(world.dir.runs, node) == [], "what is given away is free"
    site.wait_on(one, "n1")
    site.wait_on(two, "n4")

    site.net.plug_in(far)
    site.wait_nodes("up", "n2", "n3")
    site.until(lambda: len(site.places(one)) == len(site.places(two)) == 2, "they do not grow")
    (site.gpus / "hurry").touch()
    for job in (one, two):
        card = world.wait_end(job, seconds=SECONDS)
        assert card["state"] == "finished", (world.story(job), world.output(job))
        assert (card["epochs"], card["failures"]) == (EPOCHS, 0), world.story(job)
        assert card["samples"] == EPOCHS * SAMPLES, "every sample of every epoch, once"
        assert len(ends_told(partial(world.story, job))) == 1
