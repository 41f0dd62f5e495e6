"""The wall clock is set while jobs run, and between two runs, without effect on the jobs.

The service runs in this process with a clock that can be set; its jobs are real.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ones.control.clock import Clock
from ones.control.controller import Options
from ones.control.service import Service
from ones.control.statedir import StateDir
from ones.control.store import Waiting
from ones.control.submission import Submission
from ones.core.job import Job
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from tests.processes import PATIENCE, wait_for

ENV = {"PATH": os.environ["PATH"]}
DAY = 86_400.0


class Wall:
    """What the machine takes the time to be."""

    def __init__(self) -> None:
        self.wrong = 0.0

    def __call__(self) -> float:
        return time.time() + self.wrong


@contextmanager
def running(root: Path, wall: Wall) -> Iterator[Service]:
    directory = StateDir(root)
    directory.make()
    service = Service(
        directory,
        LocalLauncher(directory.runs, cpu_slots("local", 2)),
        Options(policy="fifo", clock=lambda not_before: Clock(not_before, wall=wall)),
    )
    service.start("http://127.0.0.1:9")
    try:
        yield service
    finally:
        service.stop()


def run(service: Service, command: str) -> str:
    id = service.new_id("job")
    job = Job(id=id, submitted_at=0.0, owner="me", elastic=False, max_gpus=1)
    argv = ("sh", "-c", command)
    limit = 3600.0
    submission = Submission(
        name="job", argv=argv, cwd="/", env=ENV, elastic=False, max_run_seconds=limit
    )
    safe = Waiting()
    service.submit(job, submission, safe)
    safe.wait(PATIENCE)
    return id


def ended(service: Service, job: str) -> tuple[str, float]:
    wait_for(lambda: service.board.cards[job].over)
    card = service.board.cards[job]
    return card.state, card.run_seconds


def times(root: Path) -> list[float]:
    database = sqlite3.connect(f"file:{root / 'ones.db'}?mode=ro", uri=True)
    rows = database.execute("SELECT at FROM log ORDER BY number").fetchall()
    database.close()
    return [at for (at,) in rows]


def test_a_clock_that_jumps_has_no_effect_on_jobs(tmp_path: Path) -> None:
    wall = Wall()
    go = [tmp_path / f"go{i}" for i in range(4)]
    waiting = "while [ ! -e {} ]; do sleep 0.05; done"
    began = time.monotonic()
    with running(tmp_path / "state", wall) as service:
        first = run(service, waiting.format(go[0]))
        wait_for(lambda: service.board.cards[first].state == "running")
        for wrong in (30 * DAY, -30 * DAY, 0.0):
            wall.wrong = wrong
            other = run(service, "true")
            assert ended(service, other)[0] == "finished"
            assert service.board.cards[first].state == "running", "no limit was reached"
        go[0].touch()
        state, seconds = ended(service, first)
        assert state == "finished"
        assert seconds <= time.monotonic() - began
        last = run(service, waiting.format(go[1]))
        wait_for(lambda: service.board.cards[last].state == "running")
    before = times(tmp_path / "state")
    wall.wrong = -30 * DAY  # the battery of the clock was empty
    with running(tmp_path / "state", wall) as service:
        assert service.clock.now() >= before[-1]
        go[1].touch()
        state, seconds = ended(service, last)
        assert state == "finished"
        assert 0.0 <= seconds <= time.monotonic() - began
    found = times(tmp_path / "state")
    assert len(found) > len(before)
    assert found == sorted(found), "time never goes back"
    assert found[-1] - found[0] <= time.monotonic() - began + 1.0
