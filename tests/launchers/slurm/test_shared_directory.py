"""Files that controller, agents and allocations share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.launchers.slurm.settings import Timing
from ones.launchers.slurm.shared_directory import HERE, LOST, AllocationFile, SharedDirectory


def test_what_is_shared_is_read_as_it_was_written(tmp_path: Path) -> None:
    shared = SharedDirectory(tmp_path / "runs")
    shared.make()
    assert shared.key() == SharedDirectory(tmp_path / "runs").key()
    assert oct((tmp_path / "runs" / "agents.key").stat().st_mode & 0o777) == "0o600"
    assert shared.node_state("n1") == HERE
    shared.set_node_state("n1", LOST)
    assert shared.node_state("n1") == LOST
    allocation = AllocationFile(id="7", nodes={"n1": [0]}, ends_at=5.0)
    shared.write_allocation(allocation)
    (tmp_path / "runs" / "allocations" / "8.json").write_text("half a fil")
    assert shared.allocations() == [allocation]
    assert shared.other_allocations("9") == [], "no process manages it"
    assert shared.allocations() == []
    assert Timing.from_text(Timing(lease=9.0).to_text()) == Timing(lease=9.0)


def test_a_key_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    shared = SharedDirectory(tmp_path)
    key = shared.key()
    (tmp_path / "agents.key").chmod(0o640)
    with pytest.raises(PermissionError, match=r"other users can read it \(mode 640\); remove it"):
        shared.key()
    (tmp_path / "agents.key").unlink()
    assert shared.key() != key
