"""What is removed of jobs that ended long ago, and what never is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ones.control.pruning import DAY, Keeping, Pruning
from tests.control.world import World
from tests.processes import wait_for


def test_only_what_is_old_enough_and_known_to_have_ended_goes(tmp_path: Path) -> None:
    runs, checkpoints = tmp_path / "runs", tmp_path / "checkpoints"
    for job in ("old-1", "new-2", "lives-3", "unknown-4"):
        for place in (runs / "ended", runs / "live", checkpoints):
            (place / job / "local").mkdir(parents=True)
            (place / job / "local" / "file").write_text("x")
    now = 100 * DAY
    ended = {"old-1": now - 11 * DAY, "new-2": now - 6 * DAY}
    keeping = Keeping(output_days=10.0, checkpoint_days=5.0)
    pruning = Pruning(keeping, runs, f"file://{checkpoints}", lambda: ended, lambda: now)
    assert sorted(pruning.prune()) == [
        f"{checkpoints}/new-2",
        f"{checkpoints}/old-1",
        f"{runs}/ended/old-1",
    ]
    assert pruning.prune() == []
    left = sorted(p.name for p in checkpoints.iterdir())
    assert left == ["lives-3", "unknown-4"]
    assert len(list((runs / "live").iterdir())) == 4
    for_ever = Keeping(output_days=0.0, checkpoint_days=0.0)
    assert Pruning(for_ever, runs, str(checkpoints), lambda: ended, lambda: now).prune() == []


def test_a_service_prunes_when_it_starts_and_says_what_is_gone(
    make_world: Callable[..., World],
) -> None:
    world = make_world(keep_output_days=1e-9)
    job = world.run(["echo", "hello"])
    world.wait_end(job)
    ended = world.dir.runs / "ended" / job
    wait_for(ended.exists)
    world.restart()
    wait_for(lambda: not ended.exists())
    assert world.job(job)["state"] == "finished", "the job itself is not forgotten"
    assert world.launches(job) == []


def test_what_cannot_be_pruned_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a file system or the read model raises does not end the thread."""
    monkeypatch.setattr("ones.control.pruning.HOUR", 0.001)
    asked = 0

    def ended() -> dict[str, float]:
        nonlocal asked
        asked += 1
        raise RecursionError

    pruning = Pruning(Keeping(), tmp_path, str(tmp_path), ended, lambda: 0.0)
    pruning.start()
    wait_for(lambda: asked > 3)
    pruning.stop()
    assert "pruning failed" in caplog.text
