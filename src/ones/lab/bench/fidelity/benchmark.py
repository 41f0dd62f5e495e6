"""`ones bench fidelity`: the same paced jobs live and simulated, under several policies.

A calibration run of other jobs measures how long processes take. Then, for each policy, the trace
is simulated once and run by the real service once or several times. The simulated completion times
are compared with the mean of the live ones, job by job. `ones` rescales in place, the rivals pay a
real checkpoint and a real restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ones.core.actions import adopt
from ones.core.plan import Plan, Start
from ones.core.state import State
from ones.core.transitions import apply
from ones.lab.bench.fidelity.calibration import Calibrator, MeasuredTimes
from ones.lab.bench.fidelity.live_run import LiveRun, run_live
from ones.lab.bench.fidelity.paced_jobs import (
    TRACES,
    PacedTrace,
    calibration_trace,
    quick_trace,
)
from ones.lab.bench.fidelity.simulated_run import simulate
from ones.lab.bench.live_service import SHORT_JOB_SETTINGS, working_directory
from ones.lab.kernel_warmup import warm_up
from ones.lab.service_client import Connect
from ones.runlog import RunLog

DEFAULT_TRACE = next(iter(TRACES))
#: policy and its mechanism; the first is ours
RUNS = (("ones", "elastic"), ("tiresias", "restart"), ("optimus", "restart"), ("fifo", "restart"))
QUICK_RUNS = (("equi", "elastic"),)
#: the policy with the most rescales, which are timed
CALIBRATION_RUNS = (("equi", "elastic"), ("equi", "restart"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one live run."""

    state: State
    starts: int
    jct_seconds: Mapping[str, float]  # of the jobs that completed, by their names in the trace

    @classmethod
    def of(cls, live: LiveRun) -> Outcome:
        state, starts = final_state(RunLog(live.log))
        completed = {
            live.names[job]: outcome.completion_seconds
            for job, outcome in state.ended.items()
            if outcome.reason.completed
        }
        return cls(state, starts, completed)


def bench_fidelity(
    connect: Connect,
    *,
    quick: bool = False,
    trace_name: str = DEFAULT_TRACE,
    repeats: int = 1,
    runs: Sequence[tuple[str, str]] | None = None,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for the calibration, one for each policy, and one for their order."""
    trace = quick_trace() if quick else TRACES[trace_name]()
    slots = trace.slots
    calibration_runs = QUICK_RUNS if quick else CALIBRATION_RUNS
    other_jobs = quick_trace() if quick else calibration_trace(slots)
    chosen = runs or (QUICK_RUNS if quick else RUNS)
    with working_directory(keep) as home:
        times = calibrate(connect, other_jobs, calibration_runs, home, progress)
        rows = [
            {"case": "calibration", "trace": trace.name, "jobs": len(other_jobs.jobs),
             "slots": slots, "load_average": _load(), **times.row()}
        ]  # fmt: skip
        outcomes: dict[str, list[Outcome]] = {policy: [] for policy, _ in chosen}
        loads = {}
        for policy, _ in chosen:
            warm_up(policy, SHORT_JOB_SETTINGS[policy])
        # all policies before the next repeat: the speed of a machine drifts
        for number in range(1, repeats + 1):
            for policy, mechanism in chosen:
                progress(
                    f"{policy}, {mechanism}: {len(trace.jobs)} jobs live on {slots} slots,"
                    f" run {number} of {repeats}"
                )
                live = run_live(connect, trace, policy, mechanism, home / f"{policy}-{number}")
                outcomes[policy].append(Outcome.of(live))
                loads[policy] = _load()
        compared = []
        for policy, mechanism in chosen:
            simulated = simulate(trace, policy, mechanism, times)
            row = policy_row(trace, policy, mechanism, outcomes[policy], simulated)
            compared.append(row | {"load_average": loads[policy]})
        rows += compared
        if len(compared) > 1:
            rows.append(order_row(compared))
    return rows


def calibrate(
    connect: Connect,
    trace: PacedTrace,
    runs: Sequence[tuple[str, str]],
    home: Path,
    progress: Callable[[str], None],
) -> MeasuredTimes:
    calibrator = Calibrator()
    for policy, mechanism in runs:
        progress(f"calibration, {mechanism}: {len(trace.jobs)} jobs live on {trace.slots} slots")
        directory = home / f"calibration-{mechanism}"
        calibrator.read(RunLog(run_live(connect, trace, policy, mechanism, directory).log))
    return calibrator.result()


def policy_row(
    trace: PacedTrace,
    policy: str,
    mechanism: str,
    live: Sequence[Outcome],
    simulated: State,
) -> dict[str, Any]:
    """Means over the live runs, beside the simulated run."""
    predicted = {str(job): outcome.completion_seconds for job, outcome in simulated.ended.items()}
    names = [name for name, _ in trace.named() if all(name in run.jct_seconds for run in live)]
    measured = {name: fmean(run.jct_seconds[name] for run in live) for name in names}
    errors = {name: _error(predicted[name], measured[name]) for name in names}
    means = [fmean(run.jct_seconds[name] for name in names) for run in live]
    live_mean = fmean(means)
    simulated_mean = fmean(predicted[name] for name in names)
    counts = [_counts("", run.state) for run in live]
    return {
        "case": f"{policy}, {mechanism}",
        "trace": trace.name,
        "policy": policy,
        "mechanism": mechanism,
        "jobs": len(trace.jobs),
        "slots": trace.slots,
        "runs": len(live),
        "n": len(names),
        "mean_jct_error_percent": round(abs(_error(simulated_mean, live_mean)), 2),
        "max_job_error_percent": round(max(map(abs, errors.values())), 1),
        "mean_job_error_percent": round(fmean(map(abs, errors.values())), 1),
        "mean_jct_seconds": round(live_mean, 2),
        "mean_jct_seconds_sd": round(stdev(means), 2) if len(means) > 1 else None,
        "mean_jct_seconds_each": [round(mean, 2) for mean in means],
        "simulated_mean_jct_seconds": round(simulated_mean, 2),
        "makespan_seconds": round(fmean(_makespan(run.state) for run in live), 1),
        "simulated_makespan_seconds": round(_makespan(simulated), 1),
        **{name: _mean([count[name] for count in counts]) for name in counts[0]},
        **_counts("simulated_", simulated),
        "restarts": _mean([run.starts - len(trace.jobs) for run in live]),
        "job_error_percent": {name: round(error, 1) for name, error in errors.items()},
    }


def _mean(values: Sequence[int]) -> float:
    """
    >>> _mean([3]), _mean([3, 4])
    (3, 3.5)
    """
    return values[0] if len(values) == 1 else round(fmean(values), 1)


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
        "trace": rows[0]["trace"],
        "n": len(pairs),
        "live_order": ranked("mean_jct_seconds"),
        "simulated_order": ranked("simulated_mean_jct_seconds"),
        "pairs_in_order": same,
        "jobs": rows[0]["jobs"],
        "slots": rows[0]["slots"],
        "runs": rows[0]["runs"],
        "mean_jct_error_percent": rows[0]["mean_jct_error_percent"],
        "max_job_error_percent": rows[0]["max_job_error_percent"],
    }


def _load() -> float:
    return round(os.getloadavg()[0], 2)
