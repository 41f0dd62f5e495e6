"""Removal of the processes of a node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ones.launchers.slurm.node_cleanup import clear_node, leftovers
from tests.processes import PATIENCE, is_alive, wait_for


def test_clearing_a_node_kills_only_its_own_processes(tmp_path: Path) -> None:
    def start(node: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "ONES_JOB_DIR": f"{tmp_path}/live/job/{node}"}
        return subprocess.Popen(["sh", "-c", "env -i sleep 1000 & sleep 1001"], env=env)

    mine, other = start("n1"), start("n10")
    try:
        wait_for(lambda: len(leftovers(tmp_path, "n1")) == 3)
        clear_node(tmp_path, "n1")
        assert mine.wait(PATIENCE) == -9
        assert is_alive(other.pid)
        assert not leftovers(tmp_path, "n1")
    finally:
        clear_node(tmp_path, "n10")
        other.wait(PATIENCE)
