"""An elastic job that runs until its measurements are complete."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ones.lab.bench.elastic.as_user import UserJobs
from ones.lab.bench.elastic.restarts import TIMEOUT_SECONDS, one_thread
from ones.lab.elastic_run import ElasticRun, RunOutcome
from ones.lab.scripted_policy import SchedulePhase

POLL_SECONDS = 0.3


def run_until(
    is_done: Callable[[RunOutcome], bool],
    module: str,
    arguments: Sequence[str],
    phases: Sequence[SchedulePhase],
    directory: Path,
    cwd: Path,
    user: UserJobs | None = None,
) -> RunOutcome:
    """Runs `python -m module` by the schedule and interrupts it when `is_done` returns True."""
    slots = max(phase.workers for phase in phases)
    run = ElasticRun(
        [sys.executable, "-m", module, *arguments],
        phases,
        slots=slots,
        directory=directory,
        env=one_thread(),
        cwd=cwd,
        launcher=user.launcher(directory / "launcher", slots) if user else None,
        unix=user.user.pw_name if user else "",
    )
    over = threading.Event()

    def watch() -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until and not over.wait(POLL_SECONDS):
            if is_done(run.outcome):
                break
        run.interrupt()

    threading.Thread(target=watch, daemon=True).start()
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
        outcome = run.run()
    over.set()
    return outcome
