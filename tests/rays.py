"""Ray clusters on this machine, for tests: what `tools/ray-cluster` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "ray-cluster"


class RayCluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""

    def do(self, what: str, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, TOOL, what, self.directory, *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def start(self, *words: str) -> None:
        self.address = self.do("start", *words)

    def stop(self) -> None:
        self.do("stop")
