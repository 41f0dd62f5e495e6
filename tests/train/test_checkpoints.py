"""A checkpoint holds the whole state; stale, broken and malicious files are not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ones.train.checkpoints import Checkpoints
from ones.train.tensor_messages import copy_to_cpu
from tests.train.test_equivalence import equal
from tests.train.test_replica import replica


def test_a_checkpoint_gives_everything_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path / "deep" / "er"))
    assert checkpoints.load() is None
    before = replica(1, 3)
    checkpoints.save(before.state(), (2, 0), 3)
    after = replica(5, 0)
    state = checkpoints.load()
    assert state is not None
    after.load(state)
    assert equal(copy_to_cpu(before.state()), copy_to_cpu(after.state()))


def test_two_are_kept_and_a_stale_worker_is_never_preferred(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    for step in (10, 20, 30):
        checkpoints.save({"step": step}, (4, 0), step)
    assert len(list(tmp_path.glob("*.pt"))) == 2
    checkpoints.save({"step": 5}, (5, 1), 5)  # the present generation went back to a checkpoint
    Checkpoints(str(tmp_path)).save({"step": 99}, (4, 0), 99)  # one that was given up still writes
    assert checkpoints.load() == {"step": 5}


def test_a_broken_file_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(f"file://{tmp_path}")
    checkpoints.save({"step": 1}, (1, 0), 1)
    (tmp_path / "0000000001-000000-000000000002.pt").write_bytes(b"half")
    (tmp_path / ".0000000001-000000-000000000003.pt.7").write_bytes(b"unfinished")
    assert checkpoints.load() == {"step": 1}
    assert "cannot be read" in caplog.text


def test_nothing_is_executed_when_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:  # noqa: ANN401
            return (Path.touch, (tmp_path / "executed",))

    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save({"evil": Evil()}, (1, 0), 1)
    assert checkpoints.load() is None
    assert not (tmp_path / "executed").exists()
