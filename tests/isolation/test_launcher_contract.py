"""The contract of launchers, with jobs that ones-launchd starts as another Unix user."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ones.launchers import Launcher
from ones.launchers.devices import cpu_slots
from ones.launchers.launchd_client import JobUsers, LaunchdClient
from ones.launchers.local import LocalLauncher
from ones.testing import LauncherContract
from ones.testing.launcher_harness import LauncherHarness
from ones.testing.processes import alive_below, wait_for
from tests.unix_users import Machine


class TestLaunchd(LauncherContract):
    def make(self, root: Path) -> Launcher:
        users = JobUsers(LaunchdClient(root.parent / "run" / "launchd.sock"),
                         python=(os.environ["ONES_TEST_PYTHON"],))  # fmt: skip
        return LocalLauncher(root, cpu_slots("n0", 2), idle_seconds=2.0, users=users)

    @pytest.fixture
    def subject(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[LauncherHarness]:
        monkeypatch.setenv("ONES_TEST_PYTHON", machine.python[0])
        root = machine.root / secrets.token_hex(4)
        root.mkdir(mode=0o755)
        subject = LauncherHarness(root, self.make, user=machine.ann.pw_name)
        subject.files = machine.jobs / machine.ann.pw_name
        subject.open()
        yield subject
        subject.launcher.close(kill=True)
        wait_for(lambda: not alive_below(subject.files), f"left: {alive_below(subject.files)}")
        wait_for(lambda: not machine.processes(), "processes of users are left")
        shutil.rmtree(subject.files / "live", ignore_errors=True)
