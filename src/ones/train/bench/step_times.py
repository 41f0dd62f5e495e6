"""Start and end of each step of a process: one line of JSON each, complete after a kill.

The clock is `time.monotonic`, which all processes of a machine share on Linux.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class StepTimes:
    def __init__(self, directory: str, name: str) -> None:
        path = Path(directory) / f"{name.replace('/', '-')}-{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def step(self, *, workers: int, step: int, begin: float, rank: int) -> None:
        """Records a step that has just ended."""
        self._write({
            "workers": workers, "step": step, "rank": rank,
            "begin": begin, "end": time.monotonic(),
        })  # fmt: skip

    def note(self, rank: int, **moments: float) -> None:
        """Records other times of this process, by name."""
        self._write({"rank": rank, "moments": moments})

    def _write(self, values: dict[str, object]) -> None:
        os.write(self._file, json.dumps(values).encode() + b"\n")
