"""Storage for reports that the controller has not acknowledged when a worker ends.

A file in the worker's run directory has one `Reports` message per line, as it would have been sent;
report numbers make each report count once. The controller reads the file when it learns that the
worker has exited. Above the size limit only the newest messages are written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ones.wire import Reports, pack
from ones.wire.environment import KEPT_REPORTS, MOST_KEPT_BYTES


def write(run_dir: str, messages: Iterable[Reports], max_bytes: int = MOST_KEPT_BYTES) -> None:
    """Writes the file atomically. Raises OSError."""
    lines: list[bytes] = []
    for line in reversed([pack(message) + b"\n" for message in messages]):
        max_bytes -= len(line)
        if max_bytes < 0:
            break
        lines.insert(0, line)
    path = Path(run_dir, KEPT_REPORTS)
    temporary = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def remove(run_dir: str) -> None:
    with contextlib.suppress(OSError):
        Path(run_dir, KEPT_REPORTS).unlink()
