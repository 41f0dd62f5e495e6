"""The controller may die at any moment: training goes on, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ones.control.clock import Clock
from ones.control.launching import stop_jobs
from ones.core import Plan, Scheduler
from ones.core import events as ev
from ones.core.actions import adopt
from ones.core.cluster import Cluster
from ones.core.transitions import apply
from ones.runlog import Header, decode
from ones.testing.invariants import check_invariants
from tests.control.world import World
from tests.processes import alive_below, is_alive, wait_for


def entries(world: World) -> list[Any]:
    """The run log, as it is on disk."""
    database = sqlite3.connect(f"file:{world.dir.path / 'ones.db'}?mode=ro", uri=True)
    rows = database.execute("SELECT number, entry FROM log ORDER BY number").fetchall()
    database.close()
    assert [number for number, _ in rows] == list(range(1, len(rows) + 1)), "no gap, no double"
    return [decode(text) for _, text in rows]


def check_log(world: World) -> None:
    """Folded from the beginning, it holds together; every job ended once."""
    from ones.policies import create

    scheduler = Scheduler(Cluster([]), create("fifo"))
    ends: Counter[str] = Counter()
    for entry in entries(world):
        assert not isinstance(entry, Header)
        if isinstance(entry, ev.JobEnded) and entry.job in scheduler.state.records:
            ends[entry.job] += 1
        if isinstance(entry, Plan):
            adopt(scheduler.state, entry)
        else:
            apply(scheduler.state, entry)
        check_invariants(scheduler.state)
    assert set(ends.values()) <= {1}


def test_training_goes_on_while_the_controller_is_dead_and_is_adopted(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    end = world.gate()
    job = world.submit(25, 0.2, f"end-when={end}")
    fixed = world.run(end.shell("echo late"), gpus=1)
    wait_for(lambda: world.job(job)["epochs"] >= 2)
    wait_for(lambda: world.job(fixed)["state"] == "running")
    (before,) = world.launches(job)
    world.kill()
    assert is_alive(before["pid"])
    world.up()
    assert world.job(job)["state"] == "running"
    end.open()
    card = world.wait_end(job)
    assert (card["state"], card["epochs"], card["losses"]) == ("finished", 25, 0)
    assert [p["pid"] for p in world.launches(job)] == [before["pid"]], "one process, all the time"
    assert world.wait_end(fixed)["state"] == "finished"
    world.restart()
    again = world.job(job)
    assert (again["loss"], again["accuracy"], again["cwd"]) == (
        card["loss"],
        card["accuracy"],
        str(world.root),
    ), "what was shown is kept"
    epochs = [e.epoch for e in entries(world) if isinstance(e, ev.EpochFinished)]
    assert epochs == list(range(1, 26)), "each report once"
    check_log(world)


def test_what_ended_while_the_controller_was_dead_is_told_afterwards(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    end = world.gate()
    good = world.run(end.shell(), gpus=1)
    bad = world.run(end.shell("exit 5"), gpus=1)
    wait_for(lambda: [world.job(job)["state"] for job in (good, bad)] == ["running"] * 2)
    world.kill()
    end.open()
    wait_for(lambda: len(list(world.dir.runs.glob("live/*/*/*/exit.json"))) == 2)
    world.up()
    assert world.wait_end(good)["state"] == "finished"
    assert "exit code 5" in world.wait_end(bad)["message"]
    check_log(world)


def test_things_in_a_run_directory_that_are_no_launches_keep_no_controller_from_starting(
    make_world: Callable[..., World],
) -> None:
    """The job's own processes can write there."""
    world = make_world()
    job = world.run(["sleep", "1000"], gpus=1)
    wait_for(lambda: world.job(job)["state"] == "running")
    world.kill()
    (run_dir,) = world.dir.runs.glob("live/*/*")
    spec = {"id": "", "argv": ["x"], "cwd": "/", "env": {}, "slots": ["local/0"]}
    odd: dict[str, dict[str, Any]] = {
        "evil": {},
        f"{job}~x~local.0": {},
        f"{job}~99999999999999999999999~local.0": {},
        f"{job}~1~other": {"slots": ["nowhere", "/", "local/x", "local/" + "9" * 5000]},
        f"{job}~1~more": {"slots": [7, None]},
    }
    for name, other in odd.items():
        (run_dir / name).mkdir()
        text = json.dumps({**spec, "id": name, **other}) if other or "~" in name else "[" * 100_000
        (run_dir / name / "spec.json").write_text(text)
    world.up()
    assert world.job(job)["state"] == "running"
    world.post(f"/api/jobs/{job}/cancel")
    assert world.wait_end(job)["state"] == "cancelled"
    assert world.wait_end(world.run(["true"], gpus=1))["state"] == "finished"


def test_killed_between_the_order_to_end_a_job_and_its_end(
    make_world: Callable[..., World],
) -> None:
    """Nothing of it is left but the order: its processes have gone before."""
    world = make_world(slots=1)
    job = world.run(["sh", "-c", "exit 5"], gpus=1)
    world.wait_end(job)
    world.kill()
    (end,) = [n for n, e in enumerate(entries(world), 1) if isinstance(e, ev.JobEnded)]
    with sqlite3.connect(world.dir.path / "ones.db") as database:
        for table in ("log", "mentions"):
            database.execute(f"DELETE FROM {table} WHERE number >= ?", (end,))
        database.execute("DELETE FROM ended_cards")
    database.close()
    assert isinstance(entries(world)[-1], Plan), "as if it had been killed just then"
    world.up()
    assert "exit code 5" in world.wait_end(job)["message"]
    assert world.wait_end(world.run(["true"], gpus=1))["state"] == "finished", "its GPU is free"
    check_log(world)


def test_a_job_that_was_acknowledged_is_never_lost(make_world: Callable[..., World]) -> None:
    world = make_world()
    jobs = []
    for _ in range(4):
        for _ in range(5):
            jobs.append(world.run(["true"], gpus=1))
        world.restart()
    for job in jobs:
        assert world.wait_end(job)["state"] == "finished", world.story(job)
    assert len(set(jobs)) == 20
    check_log(world)


@pytest.mark.slow
def test_it_is_killed_again_and_again_while_jobs_start_change_and_end(
    make_world: Callable[..., World],
) -> None:
    """Elastic jobs under a policy that re-scales them; the controller dies at random moments."""
    world = make_world(policy="equi")
    dice = random.Random(7)
    jobs = [world.submit(dice.randint(3, 8), 0.25, retries=3) for _ in range(6)]
    for _ in range(8):
        time.sleep(dice.uniform(0.0, 1.2))
        world.restart()
    for job in jobs:
        card = world.wait_end(job)
        assert card["state"] == "finished", world.story(job)
        assert card["failures"] == 0, world.story(job)
    check_log(world)
    wait_for(lambda: not alive_below(world.dir.runs))


def test_down_leaves_no_process_and_up_goes_on(make_world: Callable[..., World]) -> None:
    world = make_world()
    end = world.gate()
    job = world.submit(20, 0.2, f"end-when={end}")
    other = world.run(["sh", "-c", "sleep 1000"], gpus=1)
    wait_for(lambda: world.job(job)["epochs"] >= 3)
    wait_for(lambda: world.job(other)["state"] == "running")
    world.down()
    assert not alive_below(world.root)
    end.open()
    world.up()
    card = world.wait_end(job)
    assert (card["state"], card["epochs"], card["failures"]) == ("finished", 20, 0)
    wait_for(lambda: world.job(other)["state"] == "running")
    world.post(f"/api/jobs/{other}/cancel")
    check_log(world)


def test_a_reboot_takes_nothing_but_time(make_world: Callable[..., World]) -> None:
    world = make_world()
    end = world.gate()
    job = world.submit(15, 0.2, f"end-when={end}")
    wait_for(lambda: world.job(job)["epochs"] >= 3)
    world.kill()
    pids = [int(lock.read_text()) for lock in world.dir.runs.glob("live/*/*/lock")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive_below(world.dir.runs))
    end.open()
    world.env["ONES_BOOT_ID"] = "another"
    world.up()
    card = world.wait_end(job)
    assert (card["state"], card["epochs"], card["failures"]) == ("finished", 15, 0)
    assert any("has left" in line for line in world.story(job))


def test_a_second_controller_is_refused(world: World) -> None:
    other = World(world.root)
    other.dir = world.dir
    with pytest.raises(AssertionError, match="is used by another controller"):
        other.up()
    assert world.get("/health")["ok"]


def test_other_slots_while_jobs_run_are_refused_and_then_taken(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    job = world.run(["sleep", "1000"], gpus=2)
    wait_for(lambda: world.job(job)["state"] == "running")
    world.kill()
    world.settings["slots"] = 2
    with pytest.raises(AssertionError, match="has 2 slots now and had 4, and job job-1 runs"):
        world.up()
    world.settings["slots"] = 4
    world.up()
    world.post(f"/api/jobs/{job}/cancel")
    world.wait_end(job)
    wait_for(lambda: not alive_below(world.dir.runs))
    world.stop()
    world.settings["slots"] = 2
    world.up()
    assert len(world.get("/api/cluster")["slots"]) == 2


def test_time_never_goes_back() -> None:
    wall, monotonic = 1000.0, 50.0
    clock = Clock(0.0, lambda: wall, lambda: monotonic)
    assert clock.now() == 1000.0
    monotonic, wall = 60.0, 5.0  # the clock is set back
    assert clock.now() == 1010.0
    again = Clock(1010.0, lambda: wall, lambda: monotonic)
    assert again.now() == 1010.0
    monotonic = 61.0
    assert again.now() == 1011.0
    later = Clock(1010.0, lambda: 5000.0, lambda: monotonic)
    assert later.now() == 5000.0


def test_stop_leaves_the_workers_alone(make_world: Callable[..., World]) -> None:
    """As a service manager does it: a new version is started, and jobs do not notice."""
    world = make_world()
    end = world.gate()
    job = world.run(end.shell(), gpus=1)
    wait_for(lambda: world.job(job)["state"] == "running")
    world.stop()
    assert alive_below(world.dir.runs)
    end.open()
    world.up()
    assert world.wait_end(job)["state"] == "finished"


def test_the_command_line_starts_and_stops_it(tmp_path: Path) -> None:
    def ones(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("ones"), *words],
            capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300,
            env={**os.environ, "ONES_SERVICE_STATE": str(tmp_path / "state")},
        )  # fmt: skip

    nobody = ones("ps")
    assert (nobody.returncode, nobody.stderr) == (
        1,
        "ones: no service is running; start it with: ones up\n",
    )
    up = ones("up", "--slots", "2", "--port", "0", "--policy", "fifo")
    assert up.returncode == 0, up.stderr
    assert "ONES is up: http://127.0.0.1:" in up.stdout
    assert "/login?code=" in up.stdout
    try:
        again = ones("up", "--slots", "2", "--port", "0")
        assert again.returncode == 2
        assert "is used by another controller" in again.stderr
        (tmp_path / "train.py").write_text("print('hello')\nraise SystemExit(4)\n")
        run = ones("submit", "--wait", "--", sys.executable, "train.py")
        assert (run.returncode, run.stdout) == (4, "train-1\n")
        assert "train.py does not call ones.join: train-1 runs as a fixed-size" in run.stderr
        assert ones("logs", "train-1").stdout == "hello\n"
        (kept,) = json.loads(ones("logs", "train-1", "--json").stdout)
        assert (kept["text"], kept["exit_code"]) == ("hello\n", 4)
        (tmp_path / "job.toml").write_text(
            f'command = ["{sys.executable}", "train.py"]\nmax-run = 50\ntag = ["x"]\n'
        )
        filed = ones("submit", "--file", "job.toml", "--wait")
        assert filed.returncode == 4, filed.stderr
        card = json.loads(ones("show", "train-2", "--json").stdout)
        assert (card["tags"], card["max_gpus"], card["elastic"]) == (["x"], 1, False)
        assert "exit code 4" in ones("why", "train-1").stdout
        assert '"state": "failed"' in ones("ps", "-a", "--json").stdout
        missing = ones("submit", "--", sys.executable, "missing.py")
        assert (missing.returncode, missing.stderr) == (
            2,
            f"ones: {tmp_path}/missing.py: no such file or directory\n",
        )
        assert "did you mean 'train-1'?" in ones("show", "train-11").stderr
    finally:
        down = ones("down")
    assert down.returncode == 0
    assert not alive_below(tmp_path)


def test_a_start_that_was_stopped_beside_the_controller_is_begun_again_at_no_cost(
    make_world: Callable[..., World],
) -> None:
    """`ones down` after the controller was killed."""
    world = make_world(slots=1)
    job = world.run(["sleep", "1000"])  # it may join any moment, for all we know
    wait_for(lambda: [process["alive"] for process in world.launches(job)] == [True])
    assert world.job(job)["state"] == "starting"
    world.kill()
    stop_jobs(world.dir)
    world.up()
    wait_for(lambda: [process["alive"] for process in world.launches(job)] == [False, True])
    assert world.job(job)["failures"] == 0
    world.post(f"/api/jobs/{job}/cancel")
    world.wait_end(job)
