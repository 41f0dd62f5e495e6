"""A full disk, hundreds of jobs, and everything killed at random: all is accounted for."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ones.control.server import _listen, _listen_again
from ones.control.statedir import Address, StateDir
from ones.errors import WorldError
from tests.control.test_recovery import check_log
from tests.control.test_training import SLOW, hurry, submit
from tests.control.world import ENV, World
from tests.processes import alive_below, wait_for

ENDS = ("finished", "failed", "cancelled")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    options = ["-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let us mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def cramped(small_disk: Path) -> Iterator[World]:
    world = World(small_disk, min_free_mb=0.5)  # of the 6 MB
    world.up()
    yield world
    (small_disk / "ballast").unlink(missing_ok=True)
    world.down()


def fill(path: Path) -> None:
    """Until there is no room for another byte."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(handle, b"x" * 4096):
            pass
    os.close(handle)


@pytest.mark.slow
def test_a_full_disk_stops_nothing_but_progress_and_all_recovers(cramped: World) -> None:
    world = cramped
    job = world.submit(30, 0.1)
    words = "while :; do head -c 2000 /dev/zero | tr '\\0' x; sleep 0.1; done"
    talker = world.run(["sh", "-c", words], gpus=1)
    wait_for(lambda: world.job(job)["epochs"] >= 2)
    wait_for(lambda: world.output(talker))
    ballast = world.root / "ballast"
    fill(ballast)
    answer = None
    for _ in range(200):  # there is some room left in pages that the database has already
        answer = world.http.post(
            "/api/jobs",
            json={"command": ["true"], "cwd": "/", "gpus": 1, "git": "x" * 4000},
            timeout=120,
        )
        if answer.status_code != 201:
            break
    assert answer is not None
    assert answer.status_code == 503
    assert "database or disk is full" in answer.json()["error"]
    health = world.http.get("/health")
    assert health.status_code == 503
    assert "disk is full" in health.json()["problems"][0]
    assert world.job(job), "what is known can be read"
    ballast.unlink()
    wait_for(lambda: world.http.get("/health").json()["ok"])
    card = world.wait_end(job)
    assert (card["state"], card["epochs"]) == ("finished", 30)
    wait_for(lambda: "bytes of output lost: disk full]" in world.output(talker))
    world.post(f"/api/jobs/{talker}/cancel")
    for each in world.get("/api/jobs", all=True):
        assert world.wait_end(each["id"])["state"] in ENDS
    check_log(world)


@pytest.mark.slow
def test_a_checkpoint_that_finds_no_room_is_waited_for(small_disk: Path, tmp_path: Path) -> None:
    """Real training; only its checkpoints are on the disk that is full."""
    world = World(tmp_path / "world")
    world.dir.path.mkdir(parents=True)
    world.dir.checkpoints.symlink_to(small_disk)
    world.up()
    try:
        _train_through_a_full_disk(world, small_disk)
    finally:
        (small_disk / "ballast").unlink(missing_ok=True)
        world.down()


def _train_through_a_full_disk(world: World, disk: Path) -> None:
    job = submit(world, 40, env={**ENV, "ONES_CHECKPOINT_SECONDS": "0.5"})
    wait_for(lambda: world.job(job)["epochs"] >= 2, seconds=SLOW)
    kept = wait_for(lambda: sorted(disk.glob(f"{job}/*.pt")))
    fill(disk / "ballast")
    wait_for(lambda: "checkpoint was not written" in world.output(job), seconds=SLOW)
    epochs = world.job(job)["epochs"]
    wait_for(lambda: world.job(job)["epochs"] > epochs, "it trains on", SLOW)
    assert [path for path in kept if path.exists()], "what was written is still there"
    world.post("/api/shutdown", status=202)  # now they have to save their work, and cannot
    assert world.process is not None
    outputs = world.dir.runs / "live" / job
    wait_for(
        lambda: any("waiting for disk space" in p.read_text() for p in outputs.glob("*/*/out.*")),
        seconds=SLOW,
    )
    (disk / "ballast").unlink()
    world.process.wait(SLOW)
    world.http.close()
    hurry(world)
    world.up()
    card = world.wait_end(job, seconds=SLOW)
    assert (card["state"], card["epochs"], card["failures"]) == ("finished", 40, 0)
    assert card["samples"] == 40 * 256, "it went on from where it was told to leave"


@pytest.mark.soak
def test_two_hundred_jobs_through_eight_slots_with_everything_killed_at_random(
    make_world: Callable[..., World],
) -> None:
    world = make_world(policy="equi", slots=8)
    dice = random.Random(11)
    jobs = []
    for _ in range(200):
        kind = dice.random()
        if kind < 0.3:
            jobs.append(world.run(["sh", "-c", f"sleep {dice.uniform(0, 0.5)}"], gpus=1, retries=9))
        elif kind < 0.4:
            jobs.append(world.run(["sh", "-c", "exit 2"], gpus=1))
        else:
            jobs.append(world.submit(dice.randint(1, 3), dice.uniform(0.05, 0.3), retries=9))
    deadline = time.monotonic() + 500
    while world.get("/api/jobs") and time.monotonic() < deadline:
        time.sleep(dice.uniform(0.2, 1.5))
        _kill_something(world, dice)
    states = [world.wait_end(job)["state"] for job in jobs]
    assert set(states) <= {"finished", "failed"}
    assert states.count("failed") < 40, "those that fail by themselves, and few others"
    check_log(world)
    wait_for(lambda: not alive_below(world.dir.runs))


def _kill_something(world: World, dice: random.Random) -> None:
    what = dice.random()
    if what < 0.25:
        world.restart()
    elif what < 0.5:
        locks = sorted(world.dir.runs.glob("live/*/*/lock"))
        _kill(dice.choice(locks).read_text() if locks else "")
    elif what < 0.8:
        pids = [str(p) for p in alive_below(world.dir.runs)]
        _kill(dice.choice(pids) if pids else "")


def _kill(pid: str) -> None:
    try:
        if pid.strip():
            os.kill(int(pid), signal.SIGKILL)
    except (OSError, ValueError):
        pass


def test_a_port_that_is_taken_is_said_with_what_to_do() -> None:
    taken = _listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(WorldError, match=rf"127.0.0.1:{port}: .*choose another with --port"):
        _listen("127.0.0.1", port)
    assert taken.proto == socket.IPPROTO_TCP, "or small answers wait for 40 ms"
    taken.close()


def test_another_port_after_a_restart_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Running workers know only the port of before."""
    taken = _listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    directory = StateDir(tmp_path)
    directory.write_address(Address(pid=1, url=f"http://127.0.0.1:{port}"))
    other = _listen_again(directory, "127.0.0.1", 0)
    assert other.getsockname()[1] != port
    (line,) = caplog.records
    assert line.getMessage() == "port changed"
    assert str(port) in line.before  # type: ignore[attr-defined]
    caplog.clear()
    taken.close()
    other.close()
    _listen_again(directory, "127.0.0.1", 0).close()
    assert not caplog.records, "the old port is free again"
