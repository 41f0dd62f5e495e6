"""`ones bench sim`: the cost of an event in engine, state, policy and plan, by cluster size.

Each kind of event is timed separately, because rare expensive events hide in an average, and in
CPU time, because the machine may be shared. The rival of every row is the same event on the
smallest cluster, so the ratio is the cost of size. All clusters are overloaded, so that an event
is the same work on each: with idle GPUs a new job starts at once, on a full cluster it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ones.core.cluster import Cluster
from ones.core.events import EpochFinished, JobEnded, JobSubmitted
from ones.core.scheduler import Scheduler
from ones.lab.processes import own_peak_mb, run_in_process
from ones.lab.runs import Run, RunSpec
from ones.policies import create
from ones.runlog import encode
from ones.sim.engine import SimEngine
from ones.sim.lengths import physics_of
from ones.sim.oracle import oracle_of
from ones.workload import check_fits, gap_for_load, generate

#: (GPUs, jobs): about as many jobs per GPU, so that all clusters are equally full
CASES = ((64, 640), (1_024, 10_000), (10_240, 100_000))
LOAD = 1.2
#: cases with at most SHORT jobs run several times
SHORT, REPEATS = 1_000, 5
#: GPUs and jobs of the paper's evaluation, and the policy that the others are compared with
PAPER, PAPER_RIVAL = (64, 50), "fifo"
KINDS = {JobSubmitted: "submit", EpochFinished: "epoch", JobEnded: "end"}


def bench_sim(
    policy: str = "fifo",
    cases: tuple[tuple[int, int], ...] = CASES,
    *,
    load: float = LOAD,
    log: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for each size and kind of event; with `log`, the time to encode entries is included."""
    rows: list[dict[str, Any]] = []
    smallest: dict[str, float] = {}
    for gpus, jobs in cases:
        progress(f"{policy}: {jobs:,} jobs on {gpus:,} GPUs")
        for row in _best_of(REPEATS if jobs <= SHORT else 1, policy, gpus, jobs, load, log):
            rival = smallest.setdefault(row["event"], row["microseconds_per_event"])
            row["rival"] = f"{cases[0][0]} GPUs"
            row["rival_microseconds_per_event"] = rival
            row["ratio"] = round(row["microseconds_per_event"] / rival, 2) if rival else None
            rows.append(row)
    return rows


def bench_paper(
    policies: Sequence[str], *, progress: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """A whole run of the paper's workload under each policy, on one core."""
    rows: list[dict[str, Any]] = []
    rival: float | None = None
    for policy in sorted(policies, key=lambda name: name != PAPER_RIVAL):
        progress(f"{policy}: the paper's workload")
        row = run_in_process(_paper_case, policy)
        rival = row["microseconds_per_event"] if rival is None else rival
        row["rival"] = rows[0]["policy"] if rows else policy
        row["rival_microseconds_per_event"] = rival
        row["ratio"] = round(row["microseconds_per_event"] / rival, 2) if rival else None
        rows.append(row)
    return rows


def _paper_case(policy: str) -> dict[str, Any]:
    Run(RunSpec(policy=policy, gpus=16, jobs=3, seed=1)).simulate()  # compiles kernels
    gpus, jobs = PAPER
    run = Run(RunSpec(policy=policy, gpus=gpus, jobs=jobs, seed=1))
    began = time.process_time()
    result = run.simulate()
    spent = time.process_time() - began
    return {
        "case": f"paper, {policy}, {gpus} GPUs, {jobs} jobs",
        "policy": policy,
        "gpus": gpus,
        "jobs": jobs,
        "event": "all",
        "n": result.events,
        "events_per_second": round(result.events / spent) if spent else None,
        "microseconds_per_event": round(1e6 * spent / result.events, 2) if result.events else 0.0,
        "peak_mb": own_peak_mb(),
        "wall_seconds": round(result.wall_seconds, 2),
    }


def _best_of(
    repeats: int, policy: str, gpus: int, jobs: int, load: float, log: bool
) -> list[dict[str, Any]]:
    """The fastest of several runs of each row: noise only adds time."""
    tries = [run_in_process(_case, policy, gpus, jobs, load, log) for _ in range(repeats)]
    return [
        min(rows, key=lambda row: row["microseconds_per_event"])
        for rows in zip(*tries, strict=True)
    ]


def _case(policy: str, gpus: int, jobs: int, load: float, log: bool) -> list[dict[str, Any]]:
    cluster = Cluster.of(gpus)
    trace = generate(jobs=jobs, seed=1, gap=gap_for_load(load, gpus))
    check_fits(trace, cluster)
    engine = SimEngine(trace, cluster, physics_of, seed=1)
    scheduler = Scheduler(cluster, create(policy, seed=1, oracle=oracle_of(trace, seed=1)))
    seconds = dict.fromkeys((*KINDS.values(), "other"), 0.0)
    counts = dict.fromkeys(seconds, 0)
    clock = time.process_time  # of this process alone
    began, before = time.perf_counter(), clock()
    # the loop of core.engine.drive, with timers
    while (event := engine.next_event(until=scheduler.wake_at)) is not None:
        plan = scheduler.handle(event)
        if plan.actions:
            engine.carry_out(plan)
        if log:
            encode(event)
            if not plan.says_nothing:
                encode(plan)
        kind = KINDS.get(type(event), "other")
        now = clock()
        seconds[kind] += now - before
        counts[kind] += 1
        before = now
    wall = time.perf_counter() - began
    seconds["all"], counts["all"] = sum(seconds.values()), sum(counts.values())
    name = f"{policy}, {gpus} GPUs, {jobs} jobs" + (", logged" if log else "")
    return [
        {
            "case": name,
            "policy": policy,
            "gpus": gpus,
            "jobs": jobs,
            "event": kind,
            "n": counts[kind],
            "events_per_second": round(counts[kind] / spent) if spent else None,
            "microseconds_per_event": round(1e6 * spent / counts[kind], 2) if counts[kind] else 0.0,
            "peak_mb": own_peak_mb(),
            "wall_seconds": round(wall, 2),
        }
        for kind, spent in seconds.items()
    ]
