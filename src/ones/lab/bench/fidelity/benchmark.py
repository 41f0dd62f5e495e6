"""`ones bench fidelity`: the same paced jobs live and simulated, under several policies.

A calibration run of other jobs measures how long processes take. Then, for each policy, the trace
is simulated and run by the real service, and the two are compared job by job. `ones` rescales in
place, the rivals pay a real checkpoint and a real restart.
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
from ones.lab.bench.fidelity.calibration import Calibrator, MeasuredTimes
from ones.lab.bench.fidelity.live_run import LiveRun, run_live
from ones.lab.bench.fidelity.paced_jobs import (
    PacedTrace,
    calibration_trace,
    measured_trace,
    quick_trace,
)
from ones.lab.bench.fidelity.simulated_run import simulate
from ones.lab.bench.live_service import SHORT_JOB_SETTINGS, working_directory
from ones.lab.kernel_warmup import warm_up
from ones.lab.service_client import Connect
from ones.runlog import RunLog

SLOTS, QUICK_SLOTS = 8, 3
#: policy and its mechanism; the first is ours
RUNS = (("ones", "elastic"), ("tiresias", "restart"), ("optimus", "restart"), ("fifo", "restart"))
QUICK_RUNS = (("equi", "elastic"),)
#: the policy with the most rescales, which are timed
CALIBRATION_RUNS = (("equi", "elastic"), ("equi", "restart"))


def bench_fidelity(
    connect: Connect,
    *,
    quick: bool = False,
    runs: Sequence[tuple[str, str]] | None = None,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for the calibration, one for each policy, and one for their order."""
    trace, slots = (quick_trace(), QUICK_SLOTS) if quick else (measured_trace(), SLOTS)
    calibration_runs = QUICK_RUNS if quick else CALIBRATION_RUNS
    other_jobs = quick_trace() if quick else calibration_trace()
    with working_directory(keep) as home:
        times = calibrate(connect, other_jobs, calibration_runs, slots, home, progress)
        rows = [
            {"case": "calibration", "jobs": len(other_jobs.jobs), "slots": slots,
             "load_average": _load(), **times.row()}
        ]  # fmt: skip
        compared = []
        for policy, mechanism in runs or (QUICK_RUNS if quick else RUNS):
            warm_up(policy, SHORT_JOB_SETTINGS[policy])
            progress(f"{policy}, {mechanism}: {len(trace.jobs)} jobs live on {slots} slots")
            simulated = simulate(trace, policy, mechanism, slots, times)
            live = run_live(connect, trace, policy, mechanism, slots, home / policy)
            compared.append(_row(trace, policy, mechanism, slots, live, simulated))
        rows += compared
        if len(compared) > 1:
            rows.append(order_row(compared))
    return rows


def calibrate(
    connect: Connect,
    trace: PacedTrace,
    runs: Sequence[tuple[str, str]],
    slots: int,
    home: Path,
    progress: Callable[[str], None],
) -> MeasuredTimes:
    calibrator = Calibrator()
    for policy, mechanism in runs:
        progress(f"calibration, {mechanism}: {len(trace.jobs)} jobs live on {slots} slots")
        directory = home / f"calibration-{mechanism}"
        calibrator.read(RunLog(run_live(connect, trace, policy, mechanism, slots, directory).log))
    return calibrator.result()


def _row(
    trace: PacedTrace, policy: str, mechanism: str, slots: int, live: LiveRun, simulated: State
) -> dict[str, Any]:
    state, starts = final_state(RunLog(live.log))
    measured = {live.names[job]: outcome for job, outcome in state.ended.items()}
    predicted = {str(job): outcome for job, outcome in simulated.ended.items()}
    names = [name for name, _ in trace.named() if measured[name].reason.completed]
    errors = {
        name: _error(predicted[name].completion_seconds, measured[name].completion_seconds)
        for name in names
    }
    live_mean = fmean(measured[name].completion_seconds for name in names)
    simulated_mean = fmean(predicted[name].completion_seconds for name in names)
    return {
        "case": f"{policy}, {mechanism}",
        "policy": policy,
        "mechanism": mechanism,
        "jobs": len(trace.jobs),
        "slots": slots,
        "n": len(names),
        "mean_jct_error_percent": round(abs(_error(simulated_mean, live_mean)), 2),
        "max_job_error_percent": round(max(map(abs, errors.values())), 1),
        "mean_job_error_percent": round(fmean(map(abs, errors.values())), 1),
        "mean_jct_seconds": round(live_mean, 2),
        "simulated_mean_jct_seconds": round(simulated_mean, 2),
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


def final_state(log: RunLog) -> tuple[State, int]:
    """The state at the end of the log, and the number of starts of jobs."""
    state = State(log.header.cluster, log.header.switch_cost)
    starts = 0
    for entry in log:
        if isinstance(entry, Plan):
            starts += sum(isinstance(action, Start) for action in entry.actions)
            adopt(state, entry)
        else:
            apply(state, entry)
    return state, starts


def order_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The ranking of the policies, live and simulated."""

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
