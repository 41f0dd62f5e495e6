"""Kernels are compiled before a service is asked to decide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ones.errors import UnknownNameError
from ones.lab.kernel_warmup import warm_up

DECIDE_AFTER = """
import time
from ones.lab.runs import Run, RunSpec
from ones.lab.kernel_warmup import warm_up
warm_up("ones")
run = Run(RunSpec(policy="ones", gpus=4, gpus_per_node=4, jobs=6, gap=5.0, seed=2,
                  mechanism="elastic"))
from numba.core import event
class Count(event.Listener):
    compiled = []
    def on_start(self, e):
        self.compiled.append(e.data["dispatcher"].py_func.__name__)
    def on_end(self, e):
        pass
count = Count()
with event.install_listener("numba:compile", count):
    run.carry_out()
print(len(count.compiled), count.compiled)
"""


def test_an_unknown_policy_is_refused_here_already() -> None:
    with pytest.raises(UnknownNameError, match="fifoo"):
        warm_up("fifoo")


@pytest.mark.slow
def test_after_it_nothing_is_compiled(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", DECIDE_AFTER],
        capture_output=True, text=True, timeout=600, env=env, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("0 "), done.stdout
