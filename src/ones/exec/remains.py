"""After an ones-exec that was killed: clear up what it left, and say what was lost.

PDEATHSIG takes its workers with it, but not their children. Whoever gets the lock next,
a new ones-exec or the launcher, kills those and writes the exit records that are missing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ones.exec.processes import Process, carries, everybody, kill_all
from ones.exec.records import (
    LOCK,
    Exit,
    Status,
    boot_id,
    known_launches,
    read_exit,
    read_status,
    write,
)

KILL_SECONDS = 10.0


@contextmanager
def locked(run_dir: Path) -> Iterator[bool]:
    """Hold the lock of a run directory, if nobody else does."""
    handle = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield take(handle)
    finally:
        os.close(handle)


def take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(run_dir: Path) -> bool:
    """Does an ones-exec live there?"""
    if not (run_dir / LOCK).exists():
        return False
    with locked(run_dir) as mine:
        return not mine


def clear_up(run_dir: Path) -> dict[str, Exit]:
    """To be called with the lock held: nothing is left running, every launch has its record.

    The records that had to be written here. Raises TimeoutError if something cannot be killed.
    """
    open_ones = [path for path in known_launches(run_dir) if read_exit(path) is None]
    if not open_ones:
        return {}
    statuses = {path: read_status(path) for path in open_ones}
    boot = boot_id()
    # pids of before a reboot mean nothing; the mark in an environment always does
    workers = {s.pid: s for s in statuses.values() if s and s.boot_id == boot}
    kill_all(lambda: _left(run_dir, workers), str(run_dir), KILL_SECONDS)
    records = {}
    for path, status in statuses.items():
        record = _lost(status, boot)
        write(path, record)
        records[path.name] = record
    return records


def _lost(status: Status | None, boot: str) -> Exit:
    now = time.time()
    if status is None:
        return Exit(
            code=None, at=now, cause="not-started", message="ones-exec died before it started it"
        )
    if status.boot_id != boot:
        return Exit(code=None, at=now, cause="reboot", message="the machine was restarted")
    return Exit(
        code=None,
        signal=int(signal.SIGKILL),
        at=now,
        cause="lost",
        message="ones-exec, its parent, was killed",
    )


def _left(run_dir: Path, workers: dict[int, Status]) -> list[Process]:
    mark = f"ONES_JOB_DIR={run_dir}".encode()
    me = os.getpid()
    return [
        p
        for p in everybody()
        if p.pid != me
        and (
            (p.session in workers and p.born >= workers[p.session].born) or carries(p.pid, (mark,))
        )
    ]
