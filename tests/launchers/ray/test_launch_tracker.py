"""Launches of a node, tracked in the mirror."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ones.exec import Exit
from ones.launchers import Launch
from ones.launchers.ray.launch_tracker import LaunchTracker
from ones.launchers.ray.mirror import Mirror


def test_reports_that_a_worker_left_are_in_the_mirror_before_its_exit_is_told(
    tmp_path: Path,
) -> None:
    answer = {
        "launches": {"1-a": ("j", 7, asdict(Exit(code=3, at=1.0, cause="exited")))},
        "reports": {"1-a": b"{}"},
        "output": {},
        "is_all": True,
    }
    mirror = Mirror(tmp_path)
    mirror.make()
    mirror.add(Launch(id="1-a", job="j", slots=("n0/0",), argv=("sh",), cwd="/", env={}), "n0")
    events: list[tuple[str, bytes]] = []
    tracker = LaunchTracker(
        "n0", mirror, lambda event: events.append((event["event"], mirror.reports("j", "1-a")))
    )
    tracker.update(answer, {})
    assert tracker.has_exits
    tracker.update({**answer, "launches": {}}, tracker.copied)
    assert ("exited", b"{}") in events
    assert not tracker
