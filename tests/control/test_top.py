"""`ones top`: once into a pipe, live in a terminal, and a key ends it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.control.world import World
from tests.processes import PATIENCE, wait_for

ONES = str(Path(sys.executable).with_name("ones"))


def top(world: World, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [ONES, "top", "--state", str(world.dir.path), *more]
    given = {**os.environ, **env}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=given, check=False
    )


def test_into_a_pipe_it_prints_once(world: World) -> None:
    job = world.submit(100_000, 0.5)
    world.wait_state(job, "running")
    seen = top(world, COLUMNS="160")
    assert seen.returncode == 0, seen.stderr
    assert f"[{job}" in seen.stdout, "the slot"
    assert "1 of 4 slots in use" in seen.stdout
    assert "policy fifo" in seen.stdout
    assert "Started on 1 GPU (local/" in seen.stdout
    world.post(f"/api/jobs/{job}/cancel")
    world.wait_end(job)
    assert f"[{job}" not in top(world, "--all").stdout
    assert "cancelled" in top(world, "--all", COLUMNS="160").stdout


def test_json_holds_what_is_shown(world: World) -> None:
    told = json.loads(top(world, "--json").stdout)
    assert set(told) == {"cluster", "jobs", "decisions"}
    assert len(told["cluster"]["slots"]) == 4


def in_terminal(world: World, term: str) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [ONES, "top", "--state", str(world.dir.path), "--interval", "0.2"],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": term},
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    return process, ours


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except (BlockingIOError, OSError):
        return b""


@pytest.mark.parametrize("key", ["q", "Ctrl-C"])
def test_in_a_terminal_it_is_drawn_again_until_it_is_left(world: World, key: str) -> None:
    process, terminal = in_terminal(world, "xterm-256color")
    seen = bytearray()

    def drawn_twice() -> bool:
        seen.extend(read(terminal))
        return seen.count(b"slots in use") >= 2

    wait_for(drawn_twice)
    assert process.poll() is None
    if key == "q":
        os.write(terminal, b"q")
    else:
        process.send_signal(signal.SIGINT)

    def has_left() -> bool:
        seen.extend(read(terminal))
        return process.poll() is not None

    wait_for(has_left)
    seen.extend(read(terminal))
    assert process.returncode == 0
    assert b"interrupted" not in seen
    os.close(terminal)


def test_in_a_dumb_terminal_it_prints_once(world: World) -> None:
    process, terminal = in_terminal(world, "dumb")
    seen = bytearray()
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        seen.extend(read(terminal))
        time.sleep(0.05)
    seen.extend(read(terminal))
    assert process.returncode == 0
    assert seen.count(b"slots in use") == 1
    os.close(terminal)


def test_no_service_is_one_line(tmp_path: Path) -> None:
    command = [ONES, "top", "--state", str(tmp_path)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert asked.returncode == 1
    assert asked.stderr == "ones: no service is running; start it with: ones up\n"
