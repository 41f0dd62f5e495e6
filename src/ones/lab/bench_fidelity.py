"""How true is the simulator? The same paced jobs live and simulated, under several policies.

First a calibration run of other jobs, from which the simulator learns how long processes take.
Then, for each policy, the trace is simulated and run by the real service; the two are compared
job by job. `ones` re-scales in place, the rivals pay a real checkpoint and a real restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from ones.core.actions import adopt
from ones.core.plan import Plan, Start
from ones.core.state import State
from ones.core.transitions import apply
from ones.lab.bench_fidelity_live import Connect, LiveRun, run_live, scratch
from ones.lab.bench_fidelity_measure import Calibration, Watch
from ones.lab.bench_fidelity_sim import simulate
from ones.lab.bench_fidelity_trace import (
    SETTINGS,
    PacedTrace,
    calibration_trace,
    measured_trace,
    quick_trace,
)
from ones.lab.warm import warm_up
from ones.runlog import RunLog

SLOTS, QUICK_SLOTS = 8, 3
#: policy and how it changes sizes; the first is ours
RUNS = (("ones", "elastic"), ("tiresias", "restart"), ("optimus", "restart"), ("fifo", "restart"))
QUICK_RUNS = (("equi", "elastic"),)
#: who makes the most changes, to be timed
CALIBRATED = (("equi", "elastic"), ("equi", "restart"))

Progress = Callable[[str], None]


def bench_fidelity(
    connect: Connect,
    *,
    quick: bool = False,
    runs: Sequence[tuple[str, str]] | None = None,
    keep: Path | None = None,
    progress: Progress = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for the calibration, one for each policy, and one for their order."""
    trace, slots = (quick_trace(), QUICK_SLOTS) if quick else (measured_trace(), SLOTS)
    teachers = QUICK_RUNS if quick else CALIBRATED
    lessons = quick_trace() if quick else calibration_trace()
    with scratch(keep) as home:
        calibration = calibrate(connect, lessons, teachers, slots, home, progress)
        rows = [
            {"case": "calibration", "jobs": len(lessons.jobs), "slots": slots,
             "load_average": _load(), **calibration.told()}
        ]  # fmt: skip
        compared = []
        for policy, mechanism in runs or (QUICK_RUNS if quick else RUNS):
            warm_up(policy, SETTINGS[policy])
            progress(f"{policy}, {mechanism}: {len(trace.jobs)} jobs live on {slots} slots")
            simulated = simulate(trace, policy, mechanism, slots, calibration)
            live = run_live(connect, trace, policy, mechanism, slots, home / policy)
            compared.append(_row(trace, policy, mechanism, slots, live, simulated))
        rows += compared
        if len(compared) > 1:
            rows.append(_order(compared))
    return rows


def calibrate(
    connect: Connect,
    trace: PacedTrace,
    teachers: Sequence[tuple[str, str]],
    slots: int,
    home: Path,
    progress: Progress,
) -> Calibration:
    watch = Watch()
    for policy, mechanism in teachers:
        progress(f"calibration, {mechanism}: {len(trace.jobs)} jobs live on {slots} slots")
        directory = home / f"calibration-{mechanism}"
        watch.read(RunLog(run_live(connect, trace, policy, mechanism, slots, directory).log))
    return watch.calibration()


def _row(
    trace: PacedTrace, policy: str, mechanism: str, slots: int, live: LiveRun, simulated: State
) -> dict[str, Any]:
    state, starts = _folded(RunLog(live.log))
    lived = {live.ids[job]: outcome for job, outcome in state.ended.items()}
    foretold = {str(job): outcome for job, outcome in simulated.ended.items()}
    names = [name for name, _ in trace.named() if lived[name].reason.completed]
    errors = {
        name: _error(foretold[name].completion_seconds, lived[name].completion_seconds)
        for name in names
    }
    ours = fmean(lived[name].completion_seconds for name in names)
    theirs = fmean(foretold[name].completion_seconds for name in names)
    return {
        "case": f"{policy}, {mechanism}",
        "policy": policy,
        "mechanism": mechanism,
        "jobs": len(trace.jobs),
        "slots": slots,
        "n": len(names),
        "mean_jct_error_percent": round(abs(_error(theirs, ours)), 2),
        "max_job_error_percent": round(max(map(abs, errors.values())), 1),
        "mean_job_error_percent": round(fmean(map(abs, errors.values())), 1),
        "mean_jct_seconds": round(ours, 2),
        "simulated_mean_jct_seconds": round(theirs, 2),
        "makespan_seconds": round(_makespan(state), 1),
        "simulated_makespan_seconds": round(_makespan(simulated), 1),
        **_counts("", state),
        **_counts("simulated_", simulated),
        "restarts": starts - len(trace.jobs),
        "job_error_percent": {name: round(error, 1) for name, error in errors.items()},
        "load_average": _load(),
    }


def _counts(prefix: str, state: State) -> dict[str, int]:
    return {
        f"{prefix}{name}": sum(getattr(outcome, name) for outcome in state.ended.values())
        for name in ("rescales", "preemptions", "losses")
    }


def _makespan(state: State) -> float:
    ended = state.ended.values()
    return max(o.ended_at for o in ended) - min(o.submitted_at for o in ended)


def _error(simulated: float, live: float) -> float:
    """
    >>> _error(11.0, 10.0)
    10.0
    """
    return round(100.0 * (simulated / live - 1.0), 9)


def _folded(log: RunLog) -> tuple[State, int]:
    """The state at its end, and how many times jobs were started."""
    state = State(log.header.cluster, log.header.switch_cost)
    starts = 0
    for entry in log:
        if isinstance(entry, Plan):
            starts += sum(isinstance(action, Start) for action in entry.actions)
            adopt(state, entry)
        else:
            apply(state, entry)
    return state, starts


def _order(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Who is better than whom, live and simulated."""

    def ranked(key: str) -> list[str]:
        return [row["policy"] for row in sorted(rows, key=lambda row: row[key])]

    pairs = list(combinations(rows, 2))
    same = sum(
        (a["mean_jct_seconds"] < b["mean_jct_seconds"])
        == (a["simulated_mean_jct_seconds"] < b["simulated_mean_jct_seconds"])
        for a, b in pairs
    )
    return {
        "case": "order",
        "n": len(pairs),
        "live_order": ranked("mean_jct_seconds"),
        "simulated_order": ranked("simulated_mean_jct_seconds"),
        "pairs_in_order": same,
        "jobs": rows[0]["jobs"],
        "slots": rows[0]["slots"],
        "mean_jct_error_percent": rows[0]["mean_jct_error_percent"],
        "max_job_error_percent": rows[0]["max_job_error_percent"],
    }


def _load() -> float:
    return round(os.getloadavg()[0], 2)
