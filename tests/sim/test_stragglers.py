"""Slow nodes: when, how much, and the same under every policy."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from ones.core import Cluster
from ones.core.schedule import Allocation
from ones.lab.runs import Run, RunSpec
from ones.sim.stragglers import NO_STRAGGLERS, PERIOD_SECONDS, Stragglers

GPUS = list(Cluster.of(64).gpus())
SPEC = RunSpec(policy="fifo", jobs=8, gpus=16, seed=3, mechanism="elastic")


def on(*gpus: int) -> Allocation:
    return Allocation.even([GPUS[i] for i in gpus], 64)


def test_a_node_is_slow_for_a_tenth_of_the_time() -> None:
    stragglers = Stragglers(3.0, seed=1)
    times = [40.0 * i for i in range(1500)]
    nodes = [on(4 * i) for i in range(16)]
    slow = [stragglers.at(node, at)[0] > 1 for node in nodes for at in times]
    assert 0.07 < sum(slow) / len(slow) < 0.13
    assert {stragglers.at(node, at)[0] for node in nodes for at in times} == {1.0, 3.0}


def test_between_two_changes_the_factor_stays() -> None:
    stragglers, job = Stragglers(2.0, seed=5), on(0, 4, 8)
    at = 0.0
    for _ in range(200):
        factor, change = stragglers.at(job, at)
        assert at < change <= at + PERIOD_SECONDS
        assert stragglers.at(job, (at + change) / 2)[0] == factor
        at = change


def test_the_slowest_node_counts_and_the_seed_decides() -> None:
    stragglers = Stragglers(2.0, seed=5)
    for at in range(0, 6000, 50):
        each = [stragglers.at(on(i), float(at))[0] for i in (0, 4)]
        assert stragglers.at(on(0, 4), float(at))[0] == max(each)
    assert [stragglers.at(on(0), 50.0 * i)[0] for i in range(200)] != [
        Stragglers(2.0, seed=6).at(on(0), 50.0 * i)[0] for i in range(200)
    ]
    assert NO_STRAGGLERS.at(on(0), 100.0) == (1.0, inf)


def test_jobs_on_slow_nodes_take_longer_and_the_default_is_as_before() -> None:
    usual = Run(SPEC).carry_out()
    slow = Run(replace(SPEC, physics={"stragglers": 4.0})).carry_out()
    mild = Run(replace(SPEC, physics={"stragglers": 1.0 + 1e-9})).carry_out()
    assert slow["mean_jct"] > 1.05 * usual["mean_jct"]
    assert mild["mean_jct"] == pytest.approx(usual["mean_jct"], rel=1e-3)
