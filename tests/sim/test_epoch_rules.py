"""How a job goes through its data: input pipeline, first evaluation, epochs that restart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ones.core import Cluster, Event, JobId, Plan, State
from ones.core import events as ev
from ones.sim import KindPhysics, Simulator
from ones.sim.lengths import Truth
from ones.sim.physics import EpochRules, Noise
from ones.testing.invariants import check_invariants
from ones.workload import Training
from tests.sim.test_engine import Diary, trace

A = JobId("a")
SIZE = 6400  # samples of an epoch; 100 steps of 64
STEP = 0.03 + 64 * 0.00078


def play(
    sizes: dict[float, int], rules: EpochRules, epochs: int = 10
) -> tuple[State, list[Event | Plan]]:
    def physics(training: Truth) -> KindPhysics:
        assert isinstance(training, Training)
        found = KindPhysics(training)
        found.epoch_rules = rules
        found.report_noise = Noise(0.0, 0.0)
        return found

    log: list[Event | Plan] = []
    simulator = Simulator(
        trace(epochs), Cluster.of(8, 4), Diary(sizes), mechanism="elastic", physics=physics
    )
    state = simulator.run(log.append).state
    check_invariants(state)
    return state, log


def ends(log: list[Event | Plan]) -> list[ev.EpochFinished]:
    return [entry for entry in log if isinstance(entry, ev.EpochFinished)]


def test_the_input_pipeline_takes_its_time_in_every_epoch() -> None:
    _, log = play({0.0: 1}, EpochRules(load=2.0))
    found = ends(log)
    assert found[0].at == pytest.approx(5.0 + 2.0 + 100 * STEP)
    for one, two in pairwise(found):
        assert two.at - one.at == pytest.approx(2.0 + 100 * STEP)
        assert two.step_seconds == pytest.approx(STEP + 2.0 / 100)


def test_the_evaluation_before_training_counts_as_an_epoch_without_samples() -> None:
    state, log = play({0.0: 1}, EpochRules(evaluation=0.25))
    first, second, *_ = ends(log)
    assert (first.epoch, first.samples, first.steps) == (1, 0, 0)
    assert first.at == pytest.approx(5.0 + 0.25 * 100 * STEP)
    assert first.loss == first.first_loss == pytest.approx(2.302585)
    assert second.at - first.at == pytest.approx(100 * STEP)
    assert second.first_loss is None
    assert state.ended[A].epochs == 11
    assert state.ended[A].samples == 10 * SIZE  # all declared epochs train


def test_the_evaluation_is_done_once() -> None:
    _, log = play({0.0: 1, 20.0: 0, 40.0: 1, 60.0: 2}, EpochRules(evaluation=0.25, restart=True))
    assert [end.epoch for end in ends(log) if not end.samples] == [1]


def second_epoch(share: float) -> float:
    """When this share of the second epoch is done on one GPU."""
    return 5.0 + (1 + share) * 100 * STEP


def test_before_its_half_a_stopped_epoch_restarts_and_its_samples_count() -> None:
    _, log = play({0.0: 1, second_epoch(0.305): 0, 60.0: 1}, EpochRules(restart=True))
    first, second, *_ = ends(log)
    lost = second.samples - SIZE
    assert first.samples == SIZE
    assert lost == pytest.approx(0.31 * SIZE, abs=64)
    assert second.epoch == 2
    ready = next(e for e in log if isinstance(e, ev.WorkerReady) and e.at >= 60.0)
    assert second.at - ready.at == pytest.approx(100 * STEP)


def test_from_its_half_on_a_stopped_epoch_counts_as_done() -> None:
    state, log = play({0.0: 1, second_epoch(0.605): 0, 60.0: 1}, EpochRules(restart=True))
    _, cut, third, *_ = ends(log)
    assert cut.epoch == 2
    assert cut.samples == pytest.approx(0.61 * SIZE, abs=64)
    assert cut.at < 60.0
    assert third.samples == SIZE
    assert state.ended[A].epochs == 10
    assert state.ended[A].samples < 10 * SIZE


def test_a_rescale_restarts_the_epoch_too() -> None:
    _, log = play({0.0: 2, 12.0: 1}, EpochRules(restart=True))
    changed = next(e for e in log if isinstance(e, ev.Rescaled) and e.at >= 12.0)
    before, after = (
        [end for end in ends(log) if (end.at < changed.at) == early] for early in (True, False)
    )
    assert after[0].at - changed.at == pytest.approx(100 * STEP)
    assert after[0].samples > SIZE or before[-1].samples < SIZE


def test_without_the_rule_the_position_is_kept() -> None:
    _, log = play({0.0: 1, second_epoch(0.605): 0, 60.0: 1}, EpochRules())
    assert [end.samples for end in ends(log)] == [SIZE] * 10


def test_a_cut_epoch_that_is_the_last_one_ends_the_job() -> None:
    state, log = play({0.0: 1, second_epoch(0.605): 0}, EpochRules(restart=True), epochs=2)
    assert state.ended[A].epochs == 2
    assert ends(log)[-1].samples < SIZE
    assert not state.occupants
