"""Clean-up after an ones-exec that was killed: kills what it left and records what was lost.

When ones-exec dies, PDEATHSIG kills its workers, but not their children. The next holder of the
lock, a new ones-exec or the launcher, kills those and writes the missing exit records.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ones.exec.files import try_lock
from ones.exec.processes import ProcessInfo, all_processes, has_variable, kill_all
from ones.exec.records import Exit, Status, not_started, without_process
from ones.exec.run_dir import LOCK, boot_id, known_launches, read_record, write_record

KILL_SECONDS = 10.0


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[bool]:
    """Holds the lock of a run directory within; yields False if another process has it."""
    handle = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


def clean_up(run_dir: Path) -> dict[str, Exit]:
    """Kills all processes of a run directory and writes missing exit records; returns those.

    Call it with the lock held. Raises TimeoutError if a process cannot be killed.
    """
    unfinished = [path for path in known_launches(run_dir) if read_record(path, Exit) is None]
    if not unfinished:
        return {}
    statuses = {path: read_record(path, Status) for path in unfinished}
    boot = boot_id()
    # after a reboot an old pid may belong to another process
    workers = {s.pid: s for s in statuses.values() if s and s.boot_id == boot}
    kill_all(lambda: _left_over(run_dir, workers), str(run_dir), KILL_SECONDS)
    records = {}
    for path, status in statuses.items():
        record = _lost(status, boot)
        write_record(path, record)
        records[path.name] = record
    return records


def is_recorded(run_dir: Path, owner: int | None = None) -> bool:
    """Whether every launch has an exit record."""
    return all(
        read_record(path, Exit, owner) is not None for path in known_launches(run_dir, owner)
    )


def _lost(status: Status | None, boot: str) -> Exit:
    if status is None:
        return not_started("ones-exec died before it started the worker")
    if status.boot_id != boot:
        return without_process("reboot", "the machine was restarted")
    record = without_process("lost", "ones-exec, the parent of the worker, was killed")
    return replace(record, signal=int(signal.SIGKILL))


def _left_over(run_dir: Path, workers: dict[int, Status]) -> list[ProcessInfo]:
    variable = f"ONES_JOB_DIR={run_dir}".encode()

    def is_ours(process: ProcessInfo) -> bool:
        worker = workers.get(process.session)
        if worker is not None and process.born >= worker.born:
            return True
        return has_variable(process.pid, variable)

    return [p for p in all_processes() if p.pid != os.getpid() and is_ours(p)]
