"""`ones bench forecasts`: how often a job ends within the 90 % range of its forecast.

The forecast in effect at 20, 50 and 80 % of a job's life, from its first worker that trains to its
end, is compared with its real end. Live: elastic jobs as real processes under the real service;
their epochs are known, only their speed varies. Simulated: jobs that end by a stop rule, so that
their length is predicted.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ones.core import events as ev
from ones.core.cluster import Cluster
from ones.core.job import Forecast, JobId
from ones.core.plan import Plan, Stop
from ones.lab.bench.fidelity.live_run import run_live
from ones.lab.bench.fidelity.paced_jobs import (
    LANGUAGE,
    SMALL,
    TINY,
    VISION,
    PacedJob,
    PacedTrace,
)
from ones.lab.bench.live_service import SHORT_JOB_SETTINGS, working_directory
from ones.lab.kernel_warmup import warm_up
from ones.lab.service_client import Connect
from ones.policies import create
from ones.runlog import RunLog
from ones.sim import Simulator
from ones.workload import generate

POLICY = "ones"
SHARES = (20, 50, 80)  # of a job's life, in percent
LIVE_JOBS, SLOTS, LIVE_GAP = 24, 8, 5.0
SIMULATED_JOBS, GPUS, PER_NODE, GAP = 240, 64, 4, 12.0


@dataclass(slots=True)
class _Life:
    started: float | None = None
    #: times of changes of the forecast, and the forecast from then on; None: there is none
    times: list[float] = field(default_factory=list)
    forecasts: list[Forecast | None] = field(default_factory=list)

    def set(self, at: float, forecast: Forecast | None) -> None:
        self.times.append(at)
        self.forecasts.append(forecast)

    def at(self, time: float) -> Forecast | None:
        place = bisect_right(self.times, time)
        return self.forecasts[place - 1] if place else None


@dataclass(frozen=True, slots=True)
class Taken:
    """A forecast at a share of a job's life, and when the job ended."""

    share: int
    at: float
    end: float
    forecast: Forecast | None


def forecasts_of(entries: Iterable[object]) -> list[Taken]:
    """The forecasts of all completed jobs of a run, from the entries of its log."""
    lives: dict[JobId, _Life] = {}
    taken: list[Taken] = []
    for entry in entries:
        match entry:
            case Plan():
                _follow(lives, entry)
            case ev.WorkerReady():
                life = lives.setdefault(entry.job, _Life())
                life.started = entry.at if life.started is None else life.started
            case ev.TrainingRestarted():
                lives.setdefault(entry.job, _Life()).set(entry.at, None)
            case ev.JobEnded() if entry.reason.completed and entry.job in lives:
                life, end = lives.pop(entry.job), entry.at
                if life.started is not None:
                    for share in SHARES:
                        at = life.started + share / 100 * (end - life.started)
                        taken.append(Taken(share, at, end, life.at(at)))
            case _:
                pass
    return taken


def _follow(lives: dict[JobId, _Life], plan: Plan) -> None:
    for action in plan.actions:
        if isinstance(action, Stop):  # a job that waits shows no forecast
            lives.setdefault(action.job, _Life()).set(plan.at, None)
    for job, forecast in plan.forecasts.items():
        lives.setdefault(job, _Life()).set(plan.at, forecast)


def row_of(case: str, jobs: int, taken: Sequence[Taken]) -> dict[str, Any]:
    made = [(t, t.forecast) for t in taken if t.forecast is not None]
    inside = [t for t, f in made if f.low <= t.end <= f.high]
    row: dict[str, Any] = {
        "case": case,
        "policy": POLICY,
        "jobs": jobs,
        "completed": len(taken) // len(SHARES),
        "n": len(made),
        "missing": len(taken) - len(made),
        "covered_percent": _percent(len(inside), len(made)),
    }
    for share in SHARES:
        of_share = [t for t, _ in made if t.share == share]
        covered = sum(t.share == share for t in inside)
        row[f"covered_percent_at_{share}"] = _percent(covered, len(of_share))
    row["early_percent"] = _percent(sum(t.end < f.low for t, f in made), len(made))
    row["late_percent"] = _percent(sum(t.end > f.high for t, f in made), len(made))
    widths = [(f.high - f.low) / (f.eta - t.at) for t, f in made if f.eta > t.at]
    row["median_range"] = round(median(widths), 2) if widths else None
    return row


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def forecast_trace(jobs: int = LIVE_JOBS) -> PacedTrace:
    """Jobs of 51 to 77 s on one slot, one each 5 s: more than eight slots can do."""
    kinds = [(SMALL, 8), (VISION, 6), (LANGUAGE, 5), (SMALL, 10), (VISION, 8), (LANGUAGE, 6)]
    rows = [kinds[number % len(kinds)] for number in range(jobs)]
    return PacedTrace(
        "forecasts",
        SLOTS,
        tuple(
            PacedJob(at=LIVE_GAP * number, kind=kind, epochs=epochs)
            for number, (kind, epochs) in enumerate(rows)
        ),
    )


def quick_forecast_trace() -> PacedTrace:
    return PacedTrace(
        "quick", 2, tuple(PacedJob(at=2.0 * i, kind=TINY, epochs=8) for i in range(2))
    )


def bench_forecasts(
    connect: Connect,
    *,
    quick: bool = False,
    jobs: int = SIMULATED_JOBS,
    seed: int = 0,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for the live jobs and one for the simulated ones."""
    trace = quick_forecast_trace() if quick else forecast_trace()
    progress(f"{len(trace.jobs)} jobs live on {trace.slots} slots")
    warm_up(POLICY, SHORT_JOB_SETTINGS[POLICY])
    with working_directory(keep) as home:
        live = run_live(connect, trace, POLICY, "elastic", home / "live")
        taken = forecasts_of(RunLog(live.log))
    rows = [
        row_of("live", len(trace.jobs), taken)
        | {"gpus": trace.slots, "seed": None, "load_average": round(os.getloadavg()[0], 2)}
    ]
    progress(f"{jobs} jobs simulated on {GPUS} GPUs")
    return [*rows, simulated_row(jobs, seed)]


def simulated_row(jobs: int, seed: int) -> dict[str, Any]:
    entries: list[object] = []
    trace = generate(jobs=jobs, seed=seed, gap=GAP)
    policy = create(POLICY, seed=seed)
    Simulator(trace, Cluster.of(GPUS, PER_NODE), policy, seed=seed).run(entries.append)
    row = row_of("simulated", jobs, forecasts_of(entries))
    return row | {"gpus": GPUS, "seed": seed, "load_average": round(os.getloadavg()[0], 2)}
