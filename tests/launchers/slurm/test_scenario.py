"""Elastic jobs on a real Slurm, through everything that happens to nodes and allocations.

The script that `ones slurm script` prints is submitted as it is; `test_guides` runs the other
commands of docs/guides/slurm.md.
"""

from __future__ import annotations

import os
import signal
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ones.control.statedir import StateDir
from ones.launchers import LauncherEvent, SlotEnding, SlotLost
from ones.launchers.slurm.allocation import manage_in_background
from ones.launchers.slurm.launcher import SlurmLauncher
from ones.launchers.slurm.node_cleanup import leftovers
from ones.launchers.slurm.settings import SlurmOptions
from tests.control.world import ENV, PACED, ends_told
from tests.processes import PATIENCE, alive_below, is_alive, wait_for
from tests.slurm import QUICK, SlurmCluster, end_managers, new_cluster, tool

pytestmark = pytest.mark.soak
ONES = str(Path(sys.executable).with_name("ones"))
SECONDS = 300.0
TRAINED, SAMPLES, PACED_EPOCHS = 300, 64, 16
ENDS = ("finished", "converged", "failed", "cancelled")

#: real training: survivors re-form when a node dies, which a paced job cannot. It takes its time
#: slow until the file exists, so that the job lasts through the scenario
SCRIPT = """
import os, sys, time, torch, ones
torch.manual_seed(0)
x = torch.randn(64, 16)
y = (x.sum(1) > 0).long()
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(x, y)
job = ones.join(model, optimizer, data, batch_size=16, max_local_batch=16)
for epoch in job.epochs(int(sys.argv[1])):
    for a, b in job.batches():
        time.sleep(0.0 if os.path.exists("hurry") else 0.5)
        job.step(torch.nn.functional.cross_entropy(model(a), b))
    job.report(accuracy=(model(x).argmax(1) == y).float().mean().item())
    print("epoch", epoch, flush=True)
"""


class Site:
    """A state directory on a cluster, and the service that uses it at the moment."""

    def __init__(self, root: Path, cluster: SlurmCluster) -> None:
        self.root, self.cluster = root, cluster
        self.dir = StateDir(root / "state")
        self.allocations: list[str] = []

    def submit_allocation(self, nodes: int) -> str:
        script = self.cluster.run(
            ONES, "slurm", "script", "--nodes", str(nodes), "--gpus-per-node", "1",
            "--time", "30:00", "--lead", "20", "--state", str(self.dir.path),
        )  # fmt: skip
        id = self.cluster.submit(script + "\n")
        self.allocations.append(id)
        return id

    # the service

    def get(self, path: str) -> Any:  # noqa: ANN401
        """None: no service answers."""
        address, token = self.dir.address(), self.dir.read_token()
        if address is None or token is None:
            return None
        with suppress(httpx.TransportError):
            answer = httpx.get(
                address.url + path,
                headers={"Authorization": f"Bearer {token}"},
                timeout=PATIENCE,
                verify=self.context(),
            )
            return answer.json() if answer.status_code == 200 else None
        return None

    def context(self) -> ssl.SSLContext:
        """Trusts the authority that the controller made, if it listens beyond loopback."""
        own = self.dir.authority
        return ssl.create_default_context(cafile=str(own) if own.exists() else None)

    def post(self, path: str, body: Any) -> Any:  # noqa: ANN401
        address, token = self.dir.address(), self.dir.read_token()
        assert address is not None
        answer = httpx.post(
            address.url + path,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE,
            verify=self.context(),
        )
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def run(self, *command: str, **more: Any) -> str:
        body = {"command": list(command), "cwd": str(self.root), "env": ENV, "name": "job", **more}
        return str(self.post("/api/jobs", body)["id"])

    def job(self, id: str) -> dict[str, Any]:
        return self.get(f"/api/jobs/{id}") or {"state": "no answer", "epochs": -1}

    def story(self, id: str) -> list[str]:
        return [line["text"] for line in self.get(f"/api/jobs/{id}/story") or ()]

    def nodes(self) -> dict[str, str]:
        return {
            node["name"]: node["state"]
            for node in (self.get("/api/cluster") or {"nodes": []})["nodes"]
        }

    def wait_nodes(self, **states: str) -> None:
        wait_for(
            lambda: states.items() <= self.nodes().items(),
            f"{states}: {self.nodes()} {self.logs()}",
            SECONDS,
        )

    def wait_end(self, job: str) -> dict[str, Any]:
        try:
            wait_for(lambda: self.job(job)["state"] in ENDS, f"{job} does not end", SECONDS)
        except AssertionError as problem:
            story = [line["text"] for line in self.get(f"/api/jobs/{job}/story")]
            problem.add_note(f"{self.job(job)}\n{story[-20:]}\n{self.logs()}")
            raise
        return self.job(job)

    def logs(self) -> str:
        return "\n".join(
            p.read_text() for p in self.cluster.directory.glob("*.log") if p.stem.isdecimal()
        )

    # what happens to nodes

    def processes_of(self, node: str) -> list[int]:
        """All that runs on it: slurmd, the steps, our agent, and its workers."""
        conf = f"SLURM_CONF={self.cluster.directory}/slurm.conf".encode()
        name = f"SLURMD_NODENAME={node}".encode()
        found = {int((self.cluster.directory / f"slurmd.{node}.pid").read_text())}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if conf in variables and name in variables:
                    found.add(int(entry.name))
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
                        found.add(parent)
        found |= {process.pid for process in leftovers(self.dir.runs, node)}
        return sorted(found)

    def signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.fixture(scope="module")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """One of its own: its nodes are killed."""
    with new_cluster() as cluster:
        yield cluster


@pytest.fixture
def site(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    monkeypatch.setenv("ONES_SERVICE_PORT", "0")
    monkeypatch.setenv("ONES_SERVICE_POLICY", "equi")
    monkeypatch.setenv("ONES_SERVICE_GRACE_SECONDS", "2")
    monkeypatch.setenv("ONES_SLURM_TIMING", QUICK.to_text())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    site = Site(tmp_path, slurm_cluster)
    yield site
    for id in site.allocations:  # others of this cluster are none of ours
        slurm_cluster.cancel(id)
    end_managers(site.dir.runs)
    wait_for(lambda: not alive_below(tmp_path), f"left: {alive_below(tmp_path)}")


def test_every_job_ends_once_with_all_its_epochs(site: Site) -> None:
    first = site.submit_allocation(2)
    wait_for(lambda: set(site.nodes().values()) == {"up"}, site.logs(), SECONDS)
    assert len(site.nodes()) == 2
    (site.root / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(site.root / "train.py"), str(TRAINED)]
    trained = [site.run(*command, elastic=True, retries=3) for _ in range(2)]
    command = [sys.executable, PACED, str(PACED_EPOCHS), "0.5"]
    paced = [site.run(*command, max_gpus=1, retries=3) for _ in range(4)]

    # another allocation joins the controller that is there
    second = site.submit_allocation(2)
    site.wait_nodes(n1="up", n2="up", n3="up", n4="up")
    assert len({id for id in (first, second)}) == 2
    for job in trained:
        wait_for(lambda job=job: site.job(job)["epochs"] >= 2, site.logs(), SECONDS)  # type: ignore[misc]

    # a node of the second dies: its slurmd, its steps, all of it
    site.signal(site.processes_of("n4"), signal.SIGKILL)
    site.wait_nodes(n4="down")
    tool("revive", site.cluster.directory, "n4")

    # another one freezes, is given up, and thaws: nothing of before may run on
    frozen = site.processes_of("n3")
    workers = [process.pid for process in leftovers(site.dir.runs, "n3")]
    site.signal(frozen, signal.SIGSTOP)
    site.wait_nodes(n3="down")
    site.signal(frozen, signal.SIGCONT)
    wait_for(lambda: not any(map(is_alive, workers)), "its workers run on", SECONDS)
    site.wait_nodes(n3="up", n4="up")

    # the controller is killed: the script starts it again
    address = site.dir.address()
    assert address is not None
    os.kill(address.pid, signal.SIGKILL)
    wait_for(
        lambda: site.dir.address() != address and site.get("/api/cluster"), site.logs(), SECONDS
    )

    # the time limit of the second: its nodes are drained and go; the jobs go on without them
    site.cluster.run("scancel", "--batch", "--signal=USR1", second)
    site.wait_nodes(n3="down", n4="down")
    wait_for(lambda: site.cluster.state(second) == "COMPLETED", site.logs(), SECONDS)

    # and of the first, with the controller: all work is saved, and the next one goes on with it
    before = {job: site.job(job)["epochs"] for job in [*trained, *paced]}
    site.cluster.run("scancel", "--batch", "--signal=USR1", first)
    wait_for(lambda: site.cluster.state(first) == "COMPLETED", site.logs(), SECONDS)
    assert not alive_below(site.root)
    site.submit_allocation(4)
    for job in trained:
        wait_for(lambda job=job: site.job(job)["state"] == "running", site.logs(), SECONDS)  # type: ignore[misc]
    (site.root / "hurry").touch()
    for job in [*trained, *paced]:
        card = site.wait_end(job)
        assert card["state"] == "finished", (card, site.get(f"/api/jobs/{job}/story"), site.logs())
        assert card["epochs"] == (TRAINED if job in trained else PACED_EPOCHS)
        assert card["epochs"] >= before[job] >= 0
        assert len(ends_told(partial(site.story, job))) == 1, site.story(job)
    for job in trained:
        assert site.job(job)["samples"] == TRAINED * SAMPLES, "every sample of every epoch, once"


def test_the_clock_ends_an_allocation_that_gets_no_signal(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an allocation by salloc: without a request for a signal by Slurm."""
    id = slurm_cluster.allocate("--nodes=1", "--ntasks=1", "--time=1")  # minute: Slurm's least
    monkeypatch.setenv("SLURM_JOB_ID", id)
    root = tmp_path / "runs"
    root.mkdir()
    events: list[LauncherEvent] = []
    # 20 s for the agent to come, on a busy machine
    manage_in_background(root, cpus=1, lead=40.0, timing=QUICK)
    launcher = SlurmLauncher(root, SlurmOptions(timing=QUICK, open_seconds=PATIENCE))
    launcher.open(events.append)
    try:
        assert len(launcher.slots()) == 1
        wait_for(lambda: any(isinstance(e, SlotEnding) for e in events), seconds=SECONDS)
        wait_for(lambda: any(isinstance(e, SlotLost) for e in events), seconds=SECONDS)
        assert launcher.slots() == []
        assert slurm_cluster.state(id) == "RUNNING", "there was time left"
    finally:
        launcher.close(kill=True)
        end_managers(root)
        slurm_cluster.cancel(id)
