"""Ray clusters on this machine, for tests: what `tools/ray-cluster` does."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

TOOL = Path(__file__).parents[1] / "tools" / "ray-cluster"


def _tool() -> Any:  # noqa: ANN401
    """The program as a module: its name is none."""
    loader = SourceFileLoader("ray_cluster", str(TOOL))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def own_address() -> str:
    """As it has all nodes."""
    return str(_tool().own_address())


def free_port() -> int:
    return int(_tool().free_port())


class RayCluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""

    def do(self, what: str, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, TOOL, what, self.directory, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def start(self, *words: str) -> None:
        self.address = self.do("start", *words)

    def stop(self) -> None:
        self.do("stop")
