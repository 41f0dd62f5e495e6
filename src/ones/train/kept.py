"""Reports that the controller has not acknowledged when a worker ends, kept in its run directory.

One `Reports` message to a line, as it would have been sent; the numbers make each report count
once. The controller reads the file when it learns that the worker has exited. The newest reports
are kept where they would exceed the limit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ones.wire import Reports, pack
from ones.wire.environment import KEPT_REPORTS, MOST_KEPT_BYTES


def write(run_dir: str, messages: Iterable[Reports], most: int = MOST_KEPT_BYTES) -> None:
    """As a whole or not at all. Raises OSError."""
    lines: list[bytes] = []
    for line in reversed([pack(message) + b"\n" for message in messages]):
        most -= len(line)
        if most < 0:
            break
        lines.insert(0, line)
    path = Path(run_dir, KEPT_REPORTS)
    beside = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def remove(run_dir: str) -> None:
    """The controller has them after all."""
    with contextlib.suppress(OSError):
        Path(run_dir, KEPT_REPORTS).unlink()
