"""`ones bench embed`: our policies in another simulator, through the public interface.

Decisions once a minute, the same pause for every change, jobs of synthetic kinds in one of two
models, and an idealised rival that knows the true speed and length of jobs. docs/guides/embed.md
describes the interface.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ones.core import Cluster, Scheduler, SwitchCost
from ones.errors import InvalidFileError, UnknownNameError
from ones.lab.bench.embed import regime_kinds, workload
from ones.lab.bench.embed.ideal_policy import IdealPolicy
from ones.lab.bench.embed.simulator import SimulatorRules, TickJob, TickSimulator
from ones.lab.bench.embed.workload import SCATTER, read, without_kinds
from ones.lab.comparison.variants import parse_variants
from ones.policies import create
from ones.report.statistics import mean_interval

POLICIES = ("ones", "equi", "pollux", "sia")
IDEAL = "ideal"
COSTS = (30.0, 1.0)
#: laws of training, by name
MODELS = {"noise-scale": workload.generated, "regimes": regime_kinds.generated}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTrial:
    """Workloads and cluster that every policy gets."""

    workloads: int = 2
    jobs: int = 160
    hours: float = 8.0
    gpus: int = 64
    tick: float = 60.0
    costs: Sequence[float] = COSTS
    scatter: float = SCATTER
    hide_kinds: bool = False
    first_seed: int = 1000
    model: str = "noise-scale"
    file: Path | None = None  # instead of generated workloads

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise UnknownNameError("model", self.model, MODELS)

    @property
    def seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.workloads)

    def work(self, seed: int) -> list[TickJob]:
        if self.file is not None:
            jobs = read(self.file, seed, scatter=self.scatter)
        else:
            jobs = MODELS[self.model](seed, self.jobs, hours=self.hours, scatter=self.scatter)
        return without_kinds(jobs) if self.hide_kinds else jobs


FULL = EmbedTrial()
QUICK = EmbedTrial(workloads=1, jobs=40, hours=2.0, costs=(30.0,))


#: keys that are equal in rows of the same jobs, at the same cost of a change
SAME_TRIAL = (
    "model", "kinds", "hours", "scatter", "gpus", "tick_seconds", "cost_seconds", "first_seed",
    "workloads", "n",
)  # fmt: skip

Row = dict[str, Any]


def bench_embed(
    policies: Sequence[str] = POLICIES,
    trial: EmbedTrial = FULL,
    *,
    given: Sequence[str] = (),
    rival: str = IDEAL,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """`policies`: labels and `given`: settings, as in `ones compare`. `rival`: one of these labels,
    or the output of an earlier run in a JSON file: then every policy is compared with itself."""
    variants = parse_variants([label for label in policies if label != IDEAL], given=given)
    labels = (IDEAL, *(variant.label for variant in variants))
    earlier = None if rival in labels else _rows_of(rival, labels)
    rows: list[Row] = []
    for cost in trial.costs:
        found: dict[str, Row] = {}
        for label, policy, settings in (
            (IDEAL, IDEAL, {}),
            *((v.label, v.policy, v.settings) for v in variants),
        ):
            finished = [run(policy, trial, cost, seed, settings) for seed in trial.seeds]
            found[label] = row = _row(label, trial, cost, finished)
            progress(f"{row['case']}: mean {row['mean_jct_seconds']:,.0f} s")
        for label, row in found.items():
            if earlier is None:
                others = [found[rival]] if label != rival else []
            else:
                others = [r for r in earlier if r["policy"] == label and _same_jobs(r, row)]
            row.update(_against(rival, row, others[0]) if others else {})
        rows += found.values()
    return rows


def _rows_of(file: str, labels: Sequence[str]) -> list[Row]:
    """Returns the rows of an earlier run."""
    path = Path(file)
    if not path.exists():
        raise UnknownNameError("rival", file, labels)
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        valid = all({*SAME_TRIAL, "policy"} <= set(row) and _has_means(row) for row in rows)
    except (OSError, ValueError, TypeError, KeyError):
        valid = False
    if not valid:
        raise InvalidFileError(path, "is not the output of `ones bench embed --json`")
    return rows


def _has_means(row: Mapping[str, Any]) -> bool:
    means = [float(mean) for mean in (*row["mean_jct_seconds_each"], row["mean_jct_seconds"])]
    return len(means) == row["workloads"] + 1 and min(means) > 0


def _same_jobs(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(row[key] == other[key] for key in SAME_TRIAL)


def _against(rival: str, row: Row, other: Row) -> Row:
    """Returns the comparison with a rival on the same workloads."""
    pairs = zip(row["mean_jct_seconds_each"], other["mean_jct_seconds_each"], strict=True)
    ratios = [mine / theirs for mine, theirs in pairs]
    interval = mean_interval(ratios) if len(ratios) > 1 else None
    return {
        "rival": rival,
        "rival_mean_jct_seconds": other["mean_jct_seconds"],
        "ratio": round(row["mean_jct_seconds"] / other["mean_jct_seconds"], 4),
        "ratio_low": interval and round(interval.low, 4),
        "ratio_high": interval and round(interval.high, 4),
    }


def run(
    policy: str,
    trial: EmbedTrial,
    cost: float,
    seed: int,
    settings: Mapping[str, Any] | None = None,
) -> TickSimulator:
    """Runs one workload under one policy to its end."""
    truth: dict[Any, TickJob] = {}
    chosen = (
        IdealPolicy(truth, cost) if policy == IDEAL else create(policy, seed=seed, **settings or {})
    )
    scheduler = Scheduler(Cluster.of(trial.gpus), chosen, switch_cost=SwitchCost(cost, cost))
    jobs = trial.work(seed)
    truth.update((t.job.id, t) for t in jobs)
    simulator = TickSimulator(scheduler, jobs, SimulatorRules(tick=trial.tick, cost=cost), seed)
    simulator.run()
    return simulator


def _row(policy: str, trial: EmbedTrial, cost: float, finished: Sequence[TickSimulator]) -> Row:
    seconds = np.array([s for run in finished for s in run.seconds.values()])
    return {
        "case": f"{policy}, {cost:g} s a change",
        "policy": policy,
        "model": trial.model if trial.file is None else trial.file.name,
        "kinds": "hidden" if trial.hide_kinds else "given",
        "hours": trial.hours,
        "scatter": trial.scatter,
        "gpus": trial.gpus,
        "first_seed": trial.first_seed,
        "workloads": len(finished),
        "n": len(seconds),
        "tick_seconds": trial.tick,
        "cost_seconds": cost,
        "mean_jct_seconds": round(float(seconds.mean()), 1),
        "mean_jct_seconds_each": [
            round(float(np.mean(list(run.seconds.values()))), 1) for run in finished
        ],
        "median_jct_seconds": round(float(np.median(seconds)), 1),
        "p99_jct_seconds": round(float(np.percentile(seconds, 99)), 1),
        "rescales": sum(run.rescales for run in finished),
        "preemptions": sum(run.preemptions for run in finished),
        "size_changes": sum(run.size_changes.number for run in finished),
        "taken_back": sum(run.size_changes.taken_back for run in finished),
        "policy_cpu_seconds": round(sum(run.cpu_seconds for run in finished), 2),
        "rival": None,
        "rival_mean_jct_seconds": None,
        "ratio": None,
        "ratio_low": None,
        "ratio_high": None,
    }
