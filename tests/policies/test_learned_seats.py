"""`dl2` and `deeprm`: the network over seats, its teachers, and what the policies may choose."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ones.errors import InvalidSettingError
from ones.models.seat_network import SeatChooser, SeatNetwork, SeatObservation
from ones.policies import create
from ones.policies.deeprm import policy as deeprm
from ones.policies.dl2 import policy as dl2
from tests.policies.immediate_engine import ImmediateEngine

SMALL = SeatNetwork(inputs=3, hidden=4, seats=2)


def looks(count: int) -> list[SeatObservation]:
    rng = np.random.default_rng(5)
    return [
        SeatObservation(rng.normal(size=3), np.array([True, bool(i % 2), True]))
        for i in range(count)
    ]


def test_the_gradient_is_that_of_finite_differences() -> None:
    weights, seen = SMALL.initial(np.random.default_rng(1)), looks(6)
    chosen, worth = [0, 1, 2, 0, 2, 0], np.array([1.0, -0.5, 2.0, 0.3, 1.0, -1.0])
    _, slope = SMALL.gradient(weights, seen, chosen, worth, entropy=0.1)
    for i in range(0, SMALL.size, 3):
        step = np.zeros(SMALL.size)
        step[i] = 1e-6
        up, down = (
            SMALL.gradient(weights + sign * step, seen, chosen, worth, entropy=0.1)[0]
            for sign in (1, -1)
        )
        assert slope[i] == pytest.approx((up - down) / 2e-6, abs=1e-5)


def test_an_invalid_seat_is_never_chosen() -> None:
    weights = SMALL.initial(np.random.default_rng(2))
    chooser = SeatChooser(SMALL, weights, seed=1, sampled=True)
    only = SeatObservation(np.ones(3), np.array([False, True, False]))
    assert {chooser.choose(only, turn) for turn in range(20)} == {1}


def test_weights_survive_their_file(tmp_path: Path) -> None:
    weights = SMALL.initial(np.random.default_rng(3))
    file = tmp_path / "weights.json"
    file.write_text(SMALL.text(weights, {"seed": 1}))
    read = SMALL.read(str(file))
    assert read.weights == pytest.approx(weights, rel=1e-4)
    assert read.training == {"seed": 1}


@pytest.mark.parametrize("policy", ["dl2", "deeprm"])
def test_a_file_that_is_no_weights_is_refused_in_one_line(policy: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    for text, message in (
        ("{}", "not the weights of this policy"),
        (SMALL.text(SMALL.initial(np.random.default_rng(1)), {}), "another network"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidSettingError, match=message):
            create(policy, weights=str(file))
    with pytest.raises(InvalidSettingError, match="cannot be read"):
        create(policy, weights=str(tmp_path / "none.json"))


@pytest.mark.parametrize("module", [dl2, deeprm])
def test_shipped_weights_have_the_record_of_their_training(module: ModuleType) -> None:
    training = module.shipped().training
    assert training["command"].startswith("ones drl train --policy ")
    assert training["score"] == min(score for _, score in training["curve"])
    assert training["trace_seeds"]["chosen by"] == "50-55"


def test_the_teacher_of_dl2_gives_the_next_gpu_to_the_smallest_job() -> None:
    rows = np.zeros((dl2.SEATS, dl2.ROWS))
    rows[:3, 4] = (0.5, 0.25, 0.1)
    valid = np.zeros(dl2.SEATS + 1, np.bool_)
    valid[[0, 1, -1]] = True
    assert dl2.fewest_gpus(SeatObservation(rows.ravel(), valid)) == 1
    valid[:-1] = False
    assert dl2.fewest_gpus(SeatObservation(rows.ravel(), valid)) == dl2.SEATS


def test_dl2_starts_jobs_on_their_minimum_and_grows_them_at_a_slot() -> None:
    world = ImmediateEngine(create("dl2"), 8)
    world.submit("a", at=1.0, gpus=4)
    assert world.sizes() == {"a": 1}
    world.until(301.0)
    assert 1 <= world.sizes()["a"] <= 4  # not measured: at most as requested


def test_deeprm_starts_every_job_while_all_fit() -> None:
    world = ImmediateEngine(create("deeprm"), 8)
    for name in ("a", "b", "c"):
        world.submit(name, gpus=2)
    assert world.running == ["a", "b", "c"]
    assert world.note("a") == "Started on 2 GPUs, batch 64: chosen by the learned policy."


def test_deeprm_never_leaves_the_cluster_empty() -> None:
    world = ImmediateEngine(create("deeprm"), 4)
    for i in range(12):
        world.submit(f"j{i}", gpus=1 + i % 4)
    ended = 0
    while world.running:
        world.end(world.running[0])
        ended += 1
    assert ended == 12
    assert world.preempted == []
