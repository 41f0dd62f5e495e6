"""Runs tests/train/scripts by a schedule, with real processes, and reads what they left."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from ones.lab.elastic_run import ElasticRun, Outcome, parse_schedule
from tests.train.forks import ForkLauncher

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Elastic:
    """One job in a directory of its own."""

    run: ElasticRun
    out: Path
    launcher: ForkLauncher

    @property
    def traces(self) -> list[dict[str, Any]]:
        lines = []
        for path in sorted(self.out.glob("trace-*.jsonl")):
            lines += [json.loads(line) for line in path.read_text().splitlines()]
        return lines

    def output(self) -> str:
        texts = [path.read_text() for path in sorted(self.out.parent.glob("forks/*/output"))]
        return "\n".join(texts)

    def final(self) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.out / "final.pt", weights_only=True)
        return state

    def play(self, patience: float = 180.0) -> Outcome:
        """To the end; a job that hangs fails with what its workers said."""
        alarm = threading.Timer(patience, self.run.interrupt)
        alarm.start()
        outcome = self.run.run()
        alarm.cancel()
        assert outcome.done, f"{outcome}\n{self.output()}"
        return outcome

    def nothing_is_left(self) -> None:
        """No process of this job, nor its store, nor shared memory."""
        mark = str(self.launcher.job_dir)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            left = [
                p
                for p in psutil.process_iter(["pid", "cmdline", "status"])
                if p.info["status"] != psutil.STATUS_ZOMBIE and self._is_ours(p, mark)
            ]
            if not left:
                return
            time.sleep(0.1)
        raise AssertionError(f"still there: {left}")

    def _is_ours(self, process: psutil.Process, mark: str) -> bool:
        if process.pid == os.getpid():
            return False
        if any(mark in word for word in process.info["cmdline"] or ()):
            return True
        try:  # forks of the zygote have its command line; their files tell
            return any(mark in f.path for f in process.open_files())
        except (psutil.Error, OSError):
            return False


def elastic(
    zygote: str, tmp_path: Path, schedule: str, *, exact: bool = True, **env: object
) -> Elastic:
    out = tmp_path / "out"
    out.mkdir()
    launcher = ForkLauncher(zygote, tmp_path / "forks")
    words = {name: str(value) for name, value in env.items()}
    run = ElasticRun(
        ["python", str(SCRIPTS / "regress.py")],
        parse_schedule(schedule, 4),
        slots=4,
        directory=tmp_path,
        exact=exact,
        env={**os.environ, "OUT": str(out), "PYTHONPATH": "", **words},
        cwd=tmp_path,
        launcher=launcher,
    )
    return Elastic(run, out, launcher)
