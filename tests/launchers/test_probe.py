"""Does a node see what the controller sees?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ones.errors import WorldError
from ones.launchers.probe import Probe, check_probe, write_probe


def test_a_probe_tells_what_a_node_cannot_see(tmp_path: Path) -> None:
    probe = write_probe(str(tmp_path / "shared"))
    assert check_probe(probe) == ""
    assert check_probe(Probe(str(tmp_path / "elsewhere"), probe.content)) == (
        f"{tmp_path}/elsewhere: no such file or directory"
    )
    another = write_probe(str(tmp_path / "other"))
    assert check_probe(Probe(another.directory, probe.content)).endswith(
        "/other: is another directory than the controller's"
    )
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match="file/x: cannot be written to: not a directory"):
        write_probe(str(tmp_path / "file" / "x"))
    with pytest.raises(WorldError, match=r"nonsense://x: cannot be written to: .*nonsense"):
        write_probe("nonsense://x")


def test_a_probe_goes_through_fsspec() -> None:
    probe = write_probe("memory://bucket/checkpoints")
    assert check_probe(probe) == ""
    assert "is another directory" in check_probe(replace(probe, content="x"))
