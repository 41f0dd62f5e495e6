"""`ones bench embed`: our policies in a simulator that is not ours, through the public interface.

Decisions once a minute, the same pause for every change, jobs of six made-up kinds, and beside
them an idealised rival that is told the truth. docs/guides/embed.md has the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ones.core import Brain, Cluster, SwitchCost
from ones.lab.bench_embed_ideal import Ideal
from ones.lab.bench_embed_jobs import SCATTER, generated, read, without_kinds
from ones.lab.bench_embed_world import Rules, Training, World
from ones.policies import create, settings_of

POLICIES = ("ones", "equi", "pollux", "sia")
IDEAL = "ideal"
COSTS = (30.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What every policy is put to."""

    workloads: int = 2
    jobs: int = 160
    hours: float = 8.0
    gpus: int = 64
    tick: float = 60.0
    costs: Sequence[float] = COSTS
    scatter: float = SCATTER
    hide_kinds: bool = False
    first_seed: int = 1000
    file: Path | None = None  # instead of workloads that are made up

    @property
    def seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.workloads)

    def work(self, seed: int) -> list[Training]:
        if self.file is not None:
            jobs = read(self.file, seed, scatter=self.scatter)
        else:
            jobs = generated(seed, self.jobs, hours=self.hours, scatter=self.scatter)
        return without_kinds(jobs) if self.hide_kinds else jobs


FULL = Trial()
QUICK = Trial(workloads=1, jobs=40, hours=2.0, costs=(30.0,))


def bench_embed(
    policies: Sequence[str] = POLICIES,
    trial: Trial = FULL,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    for policy in policies:
        settings_of(policy)  # refuses what nobody knows
    rows: list[dict[str, Any]] = []
    for cost in trial.costs:
        found: dict[str, dict[str, Any]] = {}
        for policy in (IDEAL, *policies):
            worlds = [run(policy, trial, cost, seed) for seed in trial.seeds]
            found[policy] = row = _row(policy, trial, cost, worlds)
            progress(f"{row['case']}: mean {row['mean_jct_seconds']:,.0f} s")
        ideal = found[IDEAL]["mean_jct_seconds"]
        for policy, row in found.items():
            if policy != IDEAL:
                row |= {"rival": IDEAL, "rival_mean_jct_seconds": ideal,
                        "ratio": round(row["mean_jct_seconds"] / ideal, 4)}  # fmt: skip
        rows += found.values()
    return rows


def run(policy: str, trial: Trial, cost: float, seed: int) -> World:
    """One workload under one policy, to its end."""
    truth: dict[Any, Training] = {}
    chosen = Ideal(truth, cost) if policy == IDEAL else create(policy, seed=seed)
    brain = Brain(Cluster.of(trial.gpus), chosen, switch_cost=SwitchCost(cost, cost))
    jobs = trial.work(seed)
    truth.update((t.job.id, t) for t in jobs)
    world = World(brain, jobs, Rules(tick=trial.tick, cost=cost), seed)
    world.run()
    return world


def _row(policy: str, trial: Trial, cost: float, worlds: Sequence[World]) -> dict[str, Any]:
    seconds = np.array([s for world in worlds for s in world.seconds.values()])
    return {
        "case": f"{policy}, {cost:g} s a change",
        "policy": policy,
        "gpus": trial.gpus,
        "workloads": len(worlds),
        "n": len(seconds),
        "tick_seconds": trial.tick,
        "cost_seconds": cost,
        "mean_jct_seconds": round(float(seconds.mean()), 1),
        "mean_jct_seconds_each": [
            round(float(np.mean(list(world.seconds.values()))), 1) for world in worlds
        ],
        "median_jct_seconds": round(float(np.median(seconds)), 1),
        "p99_jct_seconds": round(float(np.percentile(seconds, 99)), 1),
        "rescales": sum(world.rescales for world in worlds),
        "preemptions": sum(world.preemptions for world in worlds),
        "policy_cpu_seconds": round(sum(world.cpu_seconds for world in worlds), 2),
        "rival": None,
        "rival_mean_jct_seconds": None,
        "ratio": None,
    }
