"""Clean-up after an ones-exec that was killed: kills what it left and records what was lost.

PDEATHSIG kills its workers, but not their children. The next holder of the lock, a new ones-exec or
the launcher, kills those and writes the missing exit records.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ones.exec.processes import ProcessInfo, all_processes, has_variable, kill_all
from ones.exec.records import (
    LOCK,
    Exit,
    Status,
    boot_id,
    known_launches,
    read_exit,
    read_status,
    write_record,
)

KILL_SECONDS = 10.0


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[bool]:
    """Holds the lock of a run directory within; yields False if another process has it."""
    handle = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(run_dir: Path) -> bool:
    """Whether an ones-exec runs there."""
    if not (run_dir / LOCK).exists():
        return False
    with lock_run_dir(run_dir) as locked:
        return not locked


def clean_up(run_dir: Path) -> dict[str, Exit]:
    """Kills all processes of a run directory and writes missing exit records; returns those.

    Call it with the lock held. Raises TimeoutError if a process cannot be killed.
    """
    unfinished = [path for path in known_launches(run_dir) if read_exit(path) is None]
    if not unfinished:
        return {}
    statuses = {path: read_status(path) for path in unfinished}
    boot = boot_id()
    # pids from before a reboot are invalid; the variable in an environment is not
    workers = {s.pid: s for s in statuses.values() if s and s.boot_id == boot}
    kill_all(lambda: _left_over(run_dir, workers), str(run_dir), KILL_SECONDS)
    records = {}
    for path, status in statuses.items():
        record = _lost(status, boot)
        write_record(path, record)
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


def _left_over(run_dir: Path, workers: dict[int, Status]) -> list[ProcessInfo]:
    variable = f"ONES_JOB_DIR={run_dir}".encode()

    def is_ours(process: ProcessInfo) -> bool:
        worker = workers.get(process.session)
        if worker is not None and process.born >= worker.born:
            return True
        return has_variable(process.pid, variable)

    return [p for p in all_processes() if p.pid != os.getpid() and is_ours(p)]
