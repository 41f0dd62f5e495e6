"""A real Slurm for tests: tools/slurm-cluster, and allocations in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ones.launchers import Launcher
from ones.launchers.slurm.allocation import manage_in_background
from ones.launchers.slurm.launcher import SlurmLauncher
from ones.launchers.slurm.settings import SlurmOptions, Timing
from tests.processes import is_alive, wait_for

TOOL = Path(__file__).parents[1] / "tools" / "slurm-cluster"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
#: a node that is frozen is given up within seconds, so that tests need not wait for minutes; but a
#: busy machine does not keep a healthy one from saying a word for so long
QUICK = Timing(ping=0.2, suspect=4.0, condemn=8.0, lease=8.0, margin=1.0)
#: for tests in which no node is lost
PATIENT = Timing(ping=0.2, suspect=60.0, condemn=120.0, lease=120.0)


class SlurmCluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, cwd=self.directory
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def allocate(self, *options: str) -> str:
        """Nodes that are held and do nothing; the id of the allocation."""
        return self.submit("#!/bin/sh\nexec sleep 3600\n", "--no-kill", *options)

    def submit(self, script: str, *options: str) -> str:
        path = self.directory / "script.sh"
        path.write_text(script)
        id = self.run("sbatch", "--parsable", "-o", f"{self.directory}/%j.log", *options, str(path))
        wait_for(lambda: self.state(id) == "RUNNING", f"{id} is {self.state(id)}")
        return id

    def state(self, id: str) -> str:
        """Empty: Slurm has forgotten the allocation, some minutes after its end."""
        states = self.run("squeue", "-h", "-t", "all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in states).get(id, "")

    def cancel(self, id: str) -> None:
        self.run("scancel", "--full", id)
        wait_for(lambda: self.state(id) in ("", "CANCELLED", "COMPLETED"), self.state(id))


def tool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    with new_cluster() as cluster:
        yield cluster


@contextmanager
def new_cluster(gpus: int = 1) -> Iterator[SlurmCluster]:
    """Four nodes with this number of GPUs each."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"Slurm is not installed ({missing[0]}): tools/system-packages")
    with (
        tempfile.TemporaryDirectory(prefix="ones-slurm-") as name,
        pytest.MonkeyPatch.context() as m,
    ):
        directory = Path(name, "cluster")
        variable, _, value = tool("start", directory, "4", str(gpus)).partition("=")
        m.setenv(variable, value)
        m.delenv("SLURM_JOB_ID", raising=False)
        try:
            yield SlurmCluster(directory)
        finally:
            tool("stop", directory)


@pytest.fixture(scope="session")
def slurm_allocation(slurm_cluster: SlurmCluster) -> Iterator[str]:
    """One node with two slots, for launchers that come and go."""
    id = slurm_cluster.allocate("--nodes=1", "--ntasks=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", id)
        yield id
    slurm_cluster.cancel(id)


class _Tidy(SlurmLauncher):
    """Ends what sees to the allocation, too: it would stay, for the next controller."""

    def __init__(self, root: Path, options: SlurmOptions) -> None:
        super().__init__(root, options)
        self._root = root

    def close(self, *, kill: bool) -> None:
        super().close(kill=kill)
        if kill:
            end_managers(self._root)


def end_managers(root: Path) -> None:
    for lock in (root / "allocations").glob("*.lock"):
        pid = int(lock.read_text())
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]


def slurm_launcher(root: Path) -> Launcher:
    """On the allocation that SLURM_JOB_ID names."""
    manage_in_background(root, cpus=2, lead=20.0, timing=PATIENT)
    return _Tidy(root, SlurmOptions(timing=PATIENT, open_seconds=120.0))
