"""What is removed of jobs that ended long ago, and what never is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ones.control.pruning import DAY, Pruning, Retention
from ones.control.schema import submissions
from ones.control.store import Store, insert
from ones.control.stored_submissions import remove_environments, submissions_of
from ones.control.submission import Submission
from ones.exec import Exit, Launch, Status
from ones.exec.output import read_output
from ones.exec.run_dir import write_record
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
    keeping = Retention(output_days=10.0, checkpoint_days=5.0)
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
    for_ever = Retention(output_days=0.0, checkpoint_days=0.0)
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


def launch(run_dir: Path, id: str, began: float, *sizes: int, alive: bool = False) -> Path:
    """A launch as `ones-exec` leaves it, with segments of these sizes."""
    directory = run_dir / id
    directory.mkdir(parents=True)
    write_record(directory, Launch(id=id, job="j", slots=(), argv=("true",), cwd="/", env={}))
    write_record(directory, Status(pid=1, born=1, started_at=began, boot_id="b"))
    if not alive:
        write_record(directory, Exit(code=0, at=began, cause="exited"))
    start = 0
    for size in sizes:
        (directory / f"out.{start:015d}").write_bytes(b"x" * size)
        start += size
    return directory


def kept_of(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("out.*"))


def test_a_job_keeps_so_much_output_and_the_oldest_goes_first(tmp_path: Path) -> None:
    for place in ("live", "ended"):
        node = tmp_path / place / "a-1" / "local"
        first = launch(node, "z-first", 1.0, 400, 400)
        second = launch(node, "a-second", 2.0, 400, 300)
        small = launch(tmp_path / place / "b-2" / "local", "one", 1.0, 900)
        broken = launch(tmp_path / place / "c-3" / "local", "one", 1.0, 5000)
        (broken / "spec.json").write_text("{")
        keeping = Retention(output_mb=0.001)
        pruning = Pruning(keeping, tmp_path, str(tmp_path), dict, lambda: 0.0)
        assert pruning.trim(place) == 800 + 5000
        assert (kept_of(first), kept_of(second)) == (
            [], ["out.000000000000000", "out.000000000000400"]
        )  # fmt: skip
        assert kept_of(small) == ["out.000000000000000"]
        assert not kept_of(broken), "a damaged record spares no output, and harms no other job"
        assert pruning.trim(place) == 0


def test_what_a_process_writes_to_is_not_dropped(tmp_path: Path) -> None:
    node = tmp_path / "live" / "a-1" / "local"
    living = launch(node, "old", 1.0, 400, 2000, alive=True)
    ended = launch(node, "new", 2.0, 400)
    pruning = Pruning(Retention(output_mb=0.001), tmp_path, str(tmp_path), dict, lambda: 0.0)
    assert pruning.trim("live") == 800
    assert (kept_of(living), kept_of(ended)) == (["out.000000000000400"], [])
    assert read_output(living, 0, 10).offset == 400, "offsets stay what they were"


def test_environments_are_removed_with_the_output(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    try:
        for job in ("old-1", "older-0", "new-2"):
            body = Submission(name="a", argv=("true",), cwd="/", env={"KEY": "secret"}).encoded()
            row = {"job": job, "owner": "ann", "submitted_at": 0.0, "body": body}
            store.write_now(insert(submissions, row))
        ended = {"old-1": 2.0, "older-0": 1.0, "new-2": 100 * DAY}
        now = 31 * DAY
        pruning = Pruning(
            Retention(), tmp_path / "runs", str(tmp_path / "checkpoints"),
            lambda: ended, lambda: now, partial(remove_environments, store),
        )  # fmt: skip
        pruning.prune()
        known = submissions_of(store, ended)
        assert {job: dict(found.env) for job, found in known.items()} == {
            "old-1": {}, "older-0": {}, "new-2": {"KEY": "secret"}
        }  # fmt: skip
        assert known["old-1"].argv == ("true",), "all else stays"
        assert remove_environments(store, {"old-1": 2.0}) == 0, "none is read twice"
        now = 131 * DAY
        pruning.prune()
        assert not submissions_of(store, ["new-2"])["new-2"].env
    finally:
        store.close()


def test_what_cannot_be_pruned_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a file system or the read model raises does not end the thread."""
    monkeypatch.setattr("ones.control.pruning.HOUR", 0.001)
    monkeypatch.setattr("ones.control.pruning.MINUTE", 0.001)
    asked = 0

    def ended() -> dict[str, float]:
        nonlocal asked
        asked += 1
        raise RecursionError

    pruning = Pruning(Retention(), tmp_path, str(tmp_path), ended, lambda: 0.0)
    pruning.start()
    wait_for(lambda: asked > 3)
    pruning.stop()
    assert "pruning failed" in caplog.text
