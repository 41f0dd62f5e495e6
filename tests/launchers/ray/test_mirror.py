"""Copies of run directories on the controller's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.exec import Exit
from ones.exec.output import SEGMENT_BYTES, SEGMENTS
from ones.launchers import Launch
from ones.launchers.ray.mirror import Mirror


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    mirror = Mirror(tmp_path)
    mirror.make()
    launch = Launch(
        id="1-a", job="j", slots=("n0/0",), argv=("true",), cwd="/", env={"SECRET": "hidden"}
    )
    mirror.add(launch, "n0")
    return mirror


def test_the_mirror_keeps_no_environment(mirror: Mirror, tmp_path: Path) -> None:
    assert "hidden" not in (tmp_path / "live/j/n0/1-a/spec.json").read_text()


def test_output_with_a_gap_keeps_its_offsets(mirror: Mirror) -> None:
    mirror.append("j", "n0", "1-a", 0, b"0123")
    mirror.append("j", "n0", "1-a", 4, b"45")
    mirror.append("j", "n0", "1-a", 100, b"later")
    assert mirror.end("j", "n0", "1-a") == 105
    assert mirror.output("j", "1-a", 0, 6).data == b"012345"
    assert mirror.output("j", "1-a", -5, 10).data == b"later"


def test_the_newest_output_is_kept(mirror: Mirror, tmp_path: Path) -> None:
    piece, offset = b"x" * (SEGMENT_BYTES // 2), 0
    for _ in range(2 * SEGMENTS + 6):
        mirror.append("j", "n0", "1-a", offset, piece)
        offset += len(piece)
    kept = sum(p.stat().st_size for p in tmp_path.glob("live/*/*/1-a/out.*"))
    assert kept <= SEGMENTS * SEGMENT_BYTES
    assert mirror.end("j", "n0", "1-a") == offset


def test_an_ended_job_moves_and_stays_readable(mirror: Mirror) -> None:
    mirror.append("j", "n0", "1-a", 0, b"kept")
    mirror.exited("j", "n0", "1-a", Exit(code=0, at=1.0, cause="exited"))
    mirror.end_job("j")
    assert list(mirror.all()) == []
    assert mirror.output("j", "1-a", 0, 10).data == b"kept"
    (process,) = mirror.history("j")
    assert process.exit is not None
