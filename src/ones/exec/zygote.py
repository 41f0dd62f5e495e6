"""A process that has torch in memory already and forks workers from it: the client's side.

`ones.train.zygote` is the other side; its docstring has the requests. Where it does not
come up, or refuses, workers are started plainly: slower, and otherwise the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from ones.exec.records import Spec
from ones.exec.worker import Worker


def fits(spec: Spec) -> bool:
    """`python script.py ...`, with nothing in between that an own interpreter would need."""
    return False


class Zygote:
    def __init__(self, run_dir: Path, spec: Spec) -> None:
        self.interpreter = spec.argv[0]
        self.pid = -1
        self.number = -1
        self.closed = False

    def fileno(self) -> int:
        return self.number

    def ask(self, worker: Worker) -> None:
        raise NotImplementedError

    def hear(self) -> tuple[list[tuple[Worker, int]], list[Worker]]:
        return [], []

    def died(self) -> None:
        self.closed = True

    def close(self) -> None:
        os.close(self.number)
