"""Policies that choose batches keep to the user's bounds, also where these leave one batch only."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from ones.core import Cluster
from ones.core.events import Event
from ones.core.plan import Plan, Rescale, Start
from ones.policies import create
from ones.sim.run import Simulator
from ones.workload.generate import generate
from ones.workload.trace import Trace, TraceJob


def bounded(least: float, most: float) -> tuple[Trace, Mapping[str, tuple[int, int]]]:
    """Eight jobs, with a batch between multiples of their own one."""
    found, bounds = [], {}
    for entry in generate(jobs=8, seed=5, gap=10.0).jobs:
        base = entry.training.base_batch
        bounds[str(entry.job.id)] = limits = max(1, int(least * base)), max(1, int(most * base))
        job = replace(entry.job, min_batch=limits[0], max_batch=limits[1])
        found.append(TraceJob(job, entry.training))
    return Trace("bounded", tuple(found)), bounds


@pytest.mark.parametrize("policy", ["ones", "equi", "pollux", "sia"])
@pytest.mark.parametrize(("least", "most"), [(1, 1), (0.5, 2)])
def test_no_plan_leaves_the_bounds(policy: str, least: float, most: float) -> None:
    trace, bounds = bounded(least, most)
    batches: list[tuple[str, int]] = []

    def record(entry: Event | Plan) -> None:
        for action in entry.actions if isinstance(entry, Plan) else ():
            if isinstance(action, Start | Rescale) and action.allocation.batch:
                batches.append((str(action.job), action.allocation.batch))

    result = Simulator(trace, Cluster.of(4), create(policy)).run(record)
    assert len(result.state.ended) == 8
    assert batches, "no plan has set a batch"
    assert [b for b in batches if not bounds[b[0]][0] <= b[1] <= bounds[b[0]][1]] == []
