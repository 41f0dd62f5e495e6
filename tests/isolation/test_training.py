"""Elastic training under the service, as its Unix user: torch, a zygote, rescales."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.world import World
from tests.processes import wait_for
from tests.unix_users import Machine

SCRIPT = """
import os, sys, time, torch, ones
torch.manual_seed(0)
x = torch.randn(64, 16)
y = (x.sum(1) > 0).long()
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(x, y)
job = ones.join(model, optimizer, data, batch_size=32)
for epoch in job.epochs(1_000_000):
    for a, b in job.batches():
        time.sleep(0.05)
        job.step(torch.nn.functional.cross_entropy(model(a), b))
        if os.path.exists(sys.argv[1]):
            job.stop()
"""
SECONDS = 300.0


@pytest.fixture
def world(machine: Machine) -> Iterator[World]:
    root = machine.root / secrets.token_hex(4)
    root.mkdir(mode=0o755)
    settings = {"launchd": str(machine.socket), "trusting": False, "policy": "equi", "slots": 2}
    world = World(root, **settings)
    world.python = machine.python[0]
    world.up()
    yield world
    world.down()
    wait_for(lambda: not machine.processes(), "processes of users are left")


@pytest.mark.slow
def test_a_job_of_a_unix_user_grows_and_shrinks_in_place(world: World, machine: Machine) -> None:
    ann = machine.ann
    me = world.get("/api/me")["name"]
    world.http.put(f"/api/users/{me}/unix", json={"unix": ann.pw_name}).raise_for_status()
    tree, enough = world.root / "tree", world.root / "enough"
    tree.mkdir(mode=0o700)  # the user cannot read it: the job runs a snapshot
    (tree / "train.py").write_text(SCRIPT)
    command = [machine.python[0], f"{tree}/train.py", str(enough)]
    changes = world.upload(command, tree, PYTHONPATH=machine.path).changes

    def has(job: str, gpus: int) -> bool:
        card = world.job(job)
        assert card["ended_at"] is None, world.evidence(job)
        return (card["state"], card["gpus"]) == ("running", gpus)

    def workers(job: str) -> list[int]:
        return [int(p["pid"]) for p in world.launches(job) if p["alive"]]

    first = world.run(["sleep", "1000"], name="first", gpus=1)
    wait_for(lambda: has(first, 1), seconds=SECONDS)
    job = world.run(elastic=True, **changes)
    wait_for(lambda: has(job, 1), seconds=SECONDS)
    (stays,) = workers(job)
    world.post(f"/api/jobs/{first}/cancel")
    wait_for(lambda: has(job, 2), seconds=SECONDS)
    grown = workers(job)
    assert len(grown) == 2
    assert stays in grown
    for pid in grown:
        assert os.stat(f"/proc/{pid}").st_uid == ann.pw_uid
        assert f"pids:/{machine.name}/{job}\n" in Path(f"/proc/{pid}/cgroup").read_text()
    inside = Path(f"/sys/fs/cgroup/pids/{machine.name}/{job}/cgroup.procs").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in inside]
    assert any(b"ones.train.zygote" in command for command in commands), commands
    world.wait_epochs(job, world.job(job)["epochs"] + 2)
    last = world.run(["sleep", "1000"], name="last", gpus=1)
    wait_for(lambda: has(job, 1) and has(last, 1), seconds=SECONDS)
    assert len(workers(job)) == 1
    world.wait_epochs(job, world.job(job)["epochs"] + 2)
    enough.touch()
    card = world.wait_end(job, seconds=SECONDS)
    assert card["state"] in ("finished", "converged"), world.evidence(job)
    assert (card["failures"], card["losses"]) == (0, 0)
