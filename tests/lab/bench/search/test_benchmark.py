"""`ones bench search`: what each row promises, on small cases."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from ones.lab.bench.search import run_states as states
from ones.lab.bench.search.benchmark import (
    after_an_event,
    anneal,
    bench_search,
    example,
    gap_percent,
)
from ones.models.allocation import total
from ones.policies.ones.score.problem import optimum
from tests.policies.ones.problems import check

PROMISED = {
    "case", "gpus", "jobs", "population", "seeded", "n", "ms_per_generation", "startup_seconds",
    "peak_mb", "warm_gap_percent",
}  # fmt: skip


@pytest.mark.slow
def test_cold_and_seeded_rows_have_the_promised_keys() -> None:
    cold, seeded = bench_search(((8, 8, 8),))
    gaps = {"reference_ms_per_generation", "gap_percent_0_1s", "gap_percent_1s", "rival", "ratio"}
    for row in (cold, seeded):
        assert set(row) >= PROMISED | gaps
    assert (cold["seeded"], seeded["seeded"]) == (False, True)
    assert seeded["gap_percent_0_1s"] == 0
    assert cold["gap_percent_1s"] < 1


def test_states_of_a_run_are_judged_against_the_optimum_and_rivals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("EVERY", 5), ("STATES", 3), ("FEW", 1), ("ANNEALING_SECONDS", 0.05)):
        monkeypatch.setattr(states, name, value)
    plain = states.bench_state(16, 12, 5.0, False)
    seeded = states.bench_state(16, 12, 5.0, True)
    for row in (plain, seeded):
        assert set(row) >= PROMISED
        assert row["n"] == 3
        assert row["could_add_percent"] >= row["added_percent"] - 1e-9
    assert 0 <= plain["warm_gap_percent"] <= plain["worst_warm_gap_percent"]
    assert plain["gap_percent_1s"] < 1
    assert plain["pollux_gap_percent"] >= 0
    assert plain["greedy_gap_percent"] >= 0
    assert seeded["warm_gap_percent"] == 0


@pytest.mark.parametrize("waiting_charge", [0.0, 2.0])
def test_annealing_is_an_honest_rival(
    waiting_charge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the rules, new jobs included, and comes close to the optimum."""
    problem = example(16, 24, waiting_charge=waiting_charge)
    problem = after_an_event(problem, optimum(problem))
    ticks = count()
    monkeypatch.setattr("ones.lab.bench.search.benchmark._CLOCK", lambda: next(ticks) / 1000)
    found = anneal(problem, 0.2)
    check(found, problem)
    assert 0 <= gap_percent(problem, found, optimum(problem)) < 20
    table = problem.table(problem.work.mean(axis=0))
    assert total(table, found) >= total(table, optimum(problem)) - 1e-9 * abs(np.min(table))
