"""Test a launcher: `pytest test_scratch.py`."""

from pathlib import Path

from ones.launchers import Launcher, LauncherContext, create
from ones.testing import LauncherContract

LAUNCHER = str(Path(__file__).with_name("scratch.py"))


class TestScratch(LauncherContract):
    def make(self, root: Path) -> Launcher:
        context = LauncherContext(runs=root, slots=2)
        return create(LAUNCHER, context, directory=str(root / "scratch"))
