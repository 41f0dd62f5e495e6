"""The run directory of one (job, node): its files, and reading and writing of its records.

    lock                held by ones-exec while it lives
    exec.sock           its socket
    exec.log            its log
    <launch>/spec.json      the process to start (with its environment: readable by the owner only)
    <launch>/status.json    pid, start time and boot of the process, once it is started
    <launch>/exit.json      how it ended: written once, after its last process has ended
    <launch>/out.<offset>   its output, in segments

Directories above keep other users out. If a job runs as another user than the service, the files
are that user's, and their group is the service's, which reads them.

Files are written atomically. The worker can write here, too: an invalid record counts as missing.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ones.exec.files import read_regular
from ones.exec.records import Exit, Launch, Record, Status, parse_record

LOCK = "lock"
SOCKET = "exec.sock"
LOG = "exec.log"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAX_RECORD = 8 << 20  # bytes; a launch holds the environment
_NAMES: Mapping[type, str] = {Launch: "spec.json", Status: "status.json", Exit: "exit.json"}

log = logging.getLogger(__name__)


def boot_id() -> str:
    """Identifies the current boot of the machine. Tests set ONES_BOOT_ID."""
    return os.environ.get("ONES_BOOT_ID") or BOOT_ID.read_text().strip()


def known_launches(run_dir: Path, owner: int | None = None) -> Iterator[Path]:
    """Directories of launches that were accepted, running or not; of this owner only."""
    try:
        paths = sorted(run_dir.iterdir())
    except OSError:
        return
    for path in paths:
        with suppress(OSError):
            found = path.lstat()
            is_owned = owner is None or found.st_uid == owner
            if stat.S_ISDIR(found.st_mode) and is_owned and is_known(path):
                yield path


def by_start(run_dir: Path) -> list[Path]:
    """Directories of all launches, in the order in which they were accepted."""

    def accepted_at(path: Path) -> float:
        try:
            return (path / _NAMES[Launch]).lstat().st_mtime
        except OSError:  # removed just now
            return 0.0

    return sorted(known_launches(run_dir), key=accepted_at)


def is_known(directory: Path) -> bool:
    """Whether the launch of this directory was accepted."""
    return os.path.lexists(directory / _NAMES[Launch])


def write_record(directory: Path, record: Launch | Status | Exit) -> None:
    """Writes a record atomically, synced to disk."""
    path = directory / _NAMES[type(record)]
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)  # it could be a link to another file
    with open(temporary, "w", opener=_private) as file:
        json.dump(asdict(record), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_record(directory: Path, kind: type[Record], owner: int | None = None) -> Record | None:
    """Reads a record; None if it does not exist, is invalid, or belongs to another user."""
    path = directory / _NAMES[kind]
    try:
        return parse_record(kind, json.loads(read_regular(path, MAX_RECORD, owner=owner)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as problem:
        why = f"{type(problem).__name__}: {problem}"[:200]
        log.warning("invalid record", extra={"path": str(path), "reason": why})
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o640)
