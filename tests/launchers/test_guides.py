"""Every command of the guides for Ray and Slurm, on a real Ray and a real Slurm."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ones.control.statedir import StateDir
from tests.guides import Reader, blocks_of
from tests.processes import alive_below, wait_for
from tests.rays import TOOL, RayCluster
from tests.slurm import PATIENT, new_cluster
from tools.loopback import free_ports, own_address

pytestmark = pytest.mark.slow

SCRIPT = """
import torch, ones
x = torch.randn(64, 8)
model = torch.nn.Linear(8, 2)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
job = ones.join(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=16)
for epoch in job.epochs(3):
    for a, b in job.batches():
        job.step(torch.nn.functional.cross_entropy(model(a), b))
    print("epoch", epoch, flush=True)
"""

#: `ray` as the reader of the guide has it: what he says to `ray start` is said to it, on a node of
#: a cluster that does not disturb others on this machine, with a GPU that does not exist
RAY = """\
#!{python}
import os, subprocess, sys
start, *words = sys.argv[1:]
assert start == "start"
if "--head" in words:
    port = words[words.index("--port") + 1]
    do = ["start", {cluster!r}, "--port", port, "--token", os.environ["RAY_AUTH_TOKEN_PATH"]]
    assert os.environ["RAY_AUTH_MODE"] == "token"
else:
    do = ["add", {cluster!r}, "n%d" % len(os.listdir({cluster!r}))]
sys.exit(subprocess.call([sys.executable, {tool!r}, *do, "--gpus", "1", "--", *words]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.py").write_text(SCRIPT)
    yield home
    wait_for(lambda: not alive_below(tmp_path), f"left behind: {alive_below(tmp_path)}")


def check_habits(home: Path, said: dict[str, str]) -> None:
    """What the commands of "Every day" did, beyond that none failed."""
    ended = home / "ended"
    assert said["ones wait later-4"] == "later-4: finished\n"
    assert said["ones wait later-5 many-6"].count(": finished") == 3
    wait_for(lambda: "later-5 finished" in ended.read_text(), "no notification")
    assert "grid-2_1 cancelled" in ended.read_text()
    assert (home / "train.py").is_file(), "jobs of snapshots run elsewhere"


def down(reader: Reader, *states: Path) -> None:
    """Whatever a test that failed has left."""
    for state in states:
        if StateDir(state).is_locked():
            with suppress(AssertionError):
                reader.types(f"ones down --dir {state}")


def test_every_command_of_the_guide_to_ray(home: Path) -> None:
    ours, tried = RayCluster(home / "cluster"), RayCluster(home / "tried")
    here, port = own_address(), str(free_ports(1)[0])
    names = {
        "head.example.org:6379": f"{here}:{port}",
        "head.example.org": here,
        "--port 6379": f"--port {port}",
        "/shared/ones": str(home / "shared"),
        "/tmp/cluster": str(tried.directory),
    }
    reader = Reader(home, names, ONES_SERVICE_NODE_DIR=str(home / "nodes"))
    ray = home / "bin" / "ray"
    ray.write_text(RAY.format(python=sys.executable, cluster=str(ours.directory), tool=str(TOOL)))
    ray.chmod(0o755)
    said: dict[str, str] = {}
    try:
        for block in blocks_of("ray.md"):
            if block[0].startswith("tools/"):  # another cluster
                reader.forgets()
            for command in block:
                said[command.split(" #")[0].strip()] = reader.types(command)
    finally:
        down(reader, home / "shared", home / ".local/state/ones")
        ours.stop()
        tried.stop()
    check_habits(home, said)
    told = {command.partition(" --address")[0]: text for command, text in said.items()}
    assert "(4 slots, policy equi)" in told["ones up --launcher ray"], "of the second cluster"
    assert "head-" in said["ones cluster"]
    assert "epoch 2" in said["ones logs -f train-1"]
    assert "the service is down" in said["ones down"]


def test_every_command_of_the_guide_to_slurm(home: Path) -> None:
    state = StateDir(home / "ones")
    said: dict[str, str] = {}
    with new_cluster(gpus=4) as cluster:
        reader = Reader(home, {"10.0.0.5": "127.0.0.1"}, ONES_SLURM_TIMING=PATIENT.to_text())
        try:
            for block in blocks_of("slurm.md"):
                if block[0].startswith("export "):  # "when the allocation has started"
                    wait_for(state.address, "no controller")
                if block[0].startswith("ones up "):  # in its place, not beside it
                    (id,) = re.findall(r"batch job (\d+)", said["sbatch ones.sbatch"])
                    cluster.cancel(id)
                    wait_for(lambda: not state.is_locked(), "it does not end")
                for command in block:
                    said[command.split(" #")[0].strip()] = reader.types(command)
        finally:
            down(reader, state.path)
    check_habits(home, said)
    assert "epoch 2" in said["ones logs -f train-1"]
    assert "n4" in said["ones cluster"]
    assert "train-1" in said["ones ps"]
    assert "ONES is up" in said["ones up --launcher slurm --dir ~/ones --host 10.0.0.5"]
