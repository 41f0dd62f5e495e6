"""`ones demo --simulated`: the same 50 jobs with three policies, as table and picture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ones.core.state import State
from ones.lab.runs import LOG_NAME, Run, RunSpec, fresh_directory
from ones.runlog import RunLog

GPUS, JOBS, SEED = 64, 50, 1
#: policy and mechanism of each run
RUNS = (("fifo", "checkpoint"), ("equi", "elastic"), ("ones", "elastic"))
#: the runs of the picture
DRAWN = (("fifo", "checkpoint"), ("ones", "elastic"))

Watch = Callable[[str, int], AbstractContextManager[Callable[[State], None] | None]]


def simulated_demo(directory: Path, watch: Watch) -> tuple[list[dict[str, Any]], Path | None]:
    """The rows of the table, and the path of the picture (None without matplotlib)."""
    rows = []
    for policy, mechanism in RUNS:
        run = Run(RunSpec(policy=policy, mechanism=mechanism, gpus=GPUS, jobs=JOBS, seed=SEED))
        home = fresh_directory(_run_directory(directory, policy, mechanism), overwrite=True)
        with watch(f"{policy}, {mechanism}", JOBS) as progress:
            rows.append(run.carry_out_into(home, progress=progress))
    return rows, _draw(directory)


def _run_directory(directory: Path, policy: str, mechanism: str) -> Path:
    return directory / f"{policy}-{mechanism}"


def _draw(directory: Path) -> Path | None:
    from ones.report import draw_comparison, timeline_of

    timelines = []
    for policy, mechanism in DRAWN:
        log = RunLog(_run_directory(directory, policy, mechanism) / LOG_NAME)
        timelines.append((f"{policy}, {mechanism} rescaling", timeline_of(log.header.cluster, log)))
    path = directory / "schedule.png"
    try:
        draw_comparison(timelines, path)
    except ImportError:
        return None
    return path
