"""The contract of launchers, for each of ours, with a real Ray and a real Slurm."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ones.launchers import Launcher
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.testing import LauncherContract
from ones.testing.launcher_harness import LauncherHarness
from tests.processes import is_alive, wait_for
from tests.rays import RayCluster
from tests.slurm import slurm_launcher


class TestLocal(LauncherContract):
    def make(self, root: Path) -> Launcher:
        return LocalLauncher(root, cpu_slots("n0", 2), idle_seconds=2.0)

    def test_after_a_reboot_it_says_what_died(
        self, subject: LauncherHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subject.run("sleep 1000")
        pid = subject.wait_started()
        subject.launcher.close(kill=False)
        for supervisor in subject.supervisors():
            os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid))
        monkeypatch.setenv("ONES_BOOT_ID", "another")
        subject.open()
        exit = subject.wait_found_dead()
        assert (exit.cause, exit.describe()) == ("reboot", "the machine was restarted")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_of_contract")
class TestRay(LauncherContract):
    uses_local_launcher = True

    def make(self, root: Path) -> Launcher:
        from ones.launchers.ray.launcher import RayLauncher
        from ones.launchers.ray.settings import RayOptions

        options = RayOptions(
            address=os.environ["ONES_TEST_RAY"],
            instance=root.parent.name,
            slots="contract",
            node_dir=str(root / "nodes"),
            lease_seconds=20.0,
        )
        return RayLauncher(root / "controller", options)


@pytest.fixture(scope="session")
def ray_of_contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two slots on the head of a Ray cluster; other processes get its address by a variable."""
    cluster = RayCluster(tmp_path_factory.mktemp("ray"))
    cluster.start("--slots", "2", "--resource", "contract")
    os.environ["ONES_TEST_RAY"] = cluster.address
    yield
    del os.environ["ONES_TEST_RAY"]
    cluster.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm_allocation")
class TestSlurm(LauncherContract):
    def make(self, root: Path) -> Launcher:
        return slurm_launcher(root)
