"""The emulated GPU, compiled once per test run. Skips where no compiler is."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from ones.train.emulation.extension import build, compiler


def compile_once(factory: pytest.TempPathFactory) -> Path:
    """All processes of a test run share one library, in the parent of their directories."""
    if compiler() is None:
        pytest.skip("the emulated GPU needs a C++ compiler (c++, g++)")
    directory = factory.getbasetemp()
    if directory.name.startswith("popen-"):  # of pytest-xdist: the parent is of this test run
        directory = directory.parent
    directory = directory / "emulated-gpu"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(directory)
