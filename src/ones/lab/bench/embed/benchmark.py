"""`ones bench embed`: our policies in another simulator, through the public interface.

Decisions once a minute, the same pause for every change, jobs of synthetic kinds in one of two
models, and an idealised rival that knows the true speed and length of jobs. docs/guides/embed.md
describes the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ones.core import Cluster, Scheduler, SwitchCost
from ones.errors import UnknownNameError
from ones.lab.bench.embed import regime_kinds, workload
from ones.lab.bench.embed.ideal_policy import IdealPolicy
from ones.lab.bench.embed.simulator import SimulatorRules, TickJob, TickSimulator
from ones.lab.bench.embed.workload import SCATTER, read, without_kinds
from ones.policies import create, settings_of

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


def bench_embed(
    policies: Sequence[str] = POLICIES,
    trial: EmbedTrial = FULL,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    for policy in policies:
        settings_of(policy)  # refuses an unknown name
    rows: list[dict[str, Any]] = []
    for cost in trial.costs:
        found: dict[str, dict[str, Any]] = {}
        for policy in (IDEAL, *policies):
            finished = [run(policy, trial, cost, seed) for seed in trial.seeds]
            found[policy] = row = _row(policy, trial, cost, finished)
            progress(f"{row['case']}: mean {row['mean_jct_seconds']:,.0f} s")
        ideal = found[IDEAL]["mean_jct_seconds"]
        for policy, row in found.items():
            if policy != IDEAL:
                row |= {"rival": IDEAL, "rival_mean_jct_seconds": ideal,
                        "ratio": round(row["mean_jct_seconds"] / ideal, 4)}  # fmt: skip
        rows += found.values()
    return rows


def run(policy: str, trial: EmbedTrial, cost: float, seed: int) -> TickSimulator:
    """Runs one workload under one policy to its end."""
    truth: dict[Any, TickJob] = {}
    chosen = IdealPolicy(truth, cost) if policy == IDEAL else create(policy, seed=seed)
    scheduler = Scheduler(Cluster.of(trial.gpus), chosen, switch_cost=SwitchCost(cost, cost))
    jobs = trial.work(seed)
    truth.update((t.job.id, t) for t in jobs)
    simulator = TickSimulator(scheduler, jobs, SimulatorRules(tick=trial.tick, cost=cost), seed)
    simulator.run()
    return simulator


def _row(
    policy: str, trial: EmbedTrial, cost: float, finished: Sequence[TickSimulator]
) -> dict[str, Any]:
    seconds = np.array([s for run in finished for s in run.seconds.values()])
    return {
        "case": f"{policy}, {cost:g} s a change",
        "policy": policy,
        "gpus": trial.gpus,
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
    }
