"""Training of the learned rival: rewards, learners on a toy, determinism, the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ones.cli import main
from ones.lab.drl import LEARNERS, TrainingPlan, TrainingStatus, train, training
from ones.lab.drl.episodes import DrlScenario, Episode, Student, fifo_jct, run_episode
from ones.lab.drl.learners import advantages
from ones.lab.drl.teacher import teacher_choice
from ones.lab.drl.trainables import TRAINABLE
from ones.policies.drl.network import (
    FEATURES,
    SIZES,
    WEIGHTS,
    Adam,
    Floats,
    Observation,
    initial_weights,
    scores,
)
from ones.policies.drl.trained_weights import SHIPPED, TrainedWeights, from_file, shipped
from ones.workload import numbers_of

TINY = TrainingPlan(
    iterations=2, rollouts=2, gathered=1, taught=1, lessons=1, evaluate_every=1, jobs=4
)
QUICK = DrlScenario(seed=3, gpus=16, jobs=10)


@pytest.fixture(autouse=True)
def _short_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole trainings of tests choose by one trace."""
    monkeypatch.setattr(training, "CHOSEN_BY", range(50, 51))
    monkeypatch.setattr(training, "VALIDATED_ON", range(60, 61))


def test_an_episodes_reward_is_minus_the_sum_of_completion_times() -> None:
    episode = run_episode(QUICK, Student(shipped(), seed=5))
    assert episode.total == pytest.approx(episode.mean_jct * QUICK.jobs, rel=1e-9)
    assert episode.reward_to_go[0] == pytest.approx(-episode.total, rel=0.05)
    assert (np.diff(episode.reward_to_go) >= 0).all()
    assert len(episode.looks) == len(episode.chosen) == len(episode.times)


def test_the_same_luck_gives_the_same_episode_and_other_luck_another() -> None:
    one, same, other = (run_episode(QUICK, Student(shipped(), seed=s)) for s in (5, 5, 6))
    assert one.chosen == same.chosen
    assert one.total == same.total
    assert one.total != other.total


def test_the_teacher_makes_valid_moves_and_beats_random_ones() -> None:
    kinds = shipped().kinds
    careless = TrainedWeights(np.zeros(WEIGHTS), kinds)
    scenario = DrlScenario(seed=2, gpus=64, jobs=20)
    taught = run_episode(scenario, Student(careless, pick=partial(teacher_choice, gpus=64)))
    assert all(look.valid[c] for look, c in zip(taught.looks, taught.chosen, strict=True))
    luck = [run_episode(scenario, Student(careless, seed=s)).mean_jct for s in range(3)]
    assert taught.mean_jct < 0.75 * np.mean(luck)
    assert taught.mean_jct < fifo_jct(scenario)


# learners, on a toy: in every look, the first move of the first job is the good one


def toy(weights: Floats, rng: np.random.Generator) -> Episode:
    looks, chosen, cost = [], [], [0.0]
    for _ in range(10):
        valid = np.zeros(2 * len(SIZES) + 1, np.bool_)
        valid[[0, 1, len(SIZES), -1]] = True
        features = rng.normal(size=(2, FEATURES))
        features[:, 0] = (1.0, -1.0)  # by this it can tell the first job
        look = Observation(features, valid)
        choice = int(rng.choice(len(look.valid), p=np.exp(scores(weights, look))))
        looks.append(look)
        chosen.append(choice)
        cost.append(cost[-1] + (1.0 if choice == 0 else 2.0))
    times = np.arange(10.0)
    return Episode(looks, chosen, times, np.array(cost[:-1]), cost[-1], cost[-1])


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_learners_find_the_good_move_of_a_toy(name: str) -> None:
    rng = np.random.default_rng(1)
    weights, adam = initial_weights(rng), Adam()
    before = np.mean([toy(weights, rng).total for _ in range(20)])
    for _ in range(60):
        episodes = [toy(weights, rng) for _ in range(8)]
        slope = LEARNERS[name](weights, episodes, TRAINABLE["drl"].slope)
        weights = adam.step(weights, slope, 1e-2)
    after = np.mean([toy(weights, rng).total for _ in range(20)])
    assert before > 16.5  # at random, one move in four is good
    assert after < 12.5


def test_an_advantage_is_against_the_other_episodes_at_that_time() -> None:
    def of(total: float) -> Episode:
        times = np.array([0.0, 50.0, 100.0])
        return Episode([], [], times, total * times / 100, total, total)

    good, bad = advantages([of(100.0), of(300.0)])
    assert good[0] > 0 > bad[0]
    assert good[0] == pytest.approx(-bad[0])
    assert abs(good[-1]) < 1e-9  # nothing was left to win
    same = advantages([of(100.0), of(100.0)])
    assert np.abs(np.concatenate(same)).max() < 1e-6


# the whole training


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_the_same_plan_gives_the_same_weights(name: str) -> None:
    plan = replace(TINY, learner=name)
    one, same = train(plan), train(plan)
    assert one.text() == same.text()
    assert [at for at, _ in one.training["curve"]] == [0, 1, 2]
    assert one.training["score"] == min(score for _, score in one.training["curve"])
    assert train(replace(plan, seed=2)).text() != one.text()


def test_the_two_learners_differ() -> None:
    slopes = []
    episodes = [run_episode(QUICK, Student(shipped(), seed=s)) for s in range(4)]
    for learn in LEARNERS.values():
        slopes.append(learn(shipped().weights, episodes, TRAINABLE["drl"].slope))
    assert np.abs(slopes[0] - slopes[1]).max() > 1e-3


def test_an_interrupted_training_gives_the_best_so_far() -> None:
    kept: list[TrainedWeights] = []

    def interrupt(report: TrainingStatus) -> None:
        if report.stage == "learning" and report.done == 1:
            raise KeyboardInterrupt

    found = train(TINY, report=interrupt, keep=kept.append)
    assert found.training["interrupted"]
    assert len(found.training["curve"]) == 1
    assert (kept[-1].weights == found.weights).all()


def test_it_goes_on_from_given_weights() -> None:
    stages = set()
    start = TrainedWeights(initial_weights(np.random.default_rng(4)), shipped().kinds)
    found = train(
        replace(TINY, iterations=0), start=start, report=lambda report: stages.add(report.stage)
    )
    assert stages == {"learning"}
    assert (found.weights == start.weights).all()


def test_training_sees_calibration_seeds_only() -> None:
    scenarios = [training._scenario(TrainingPlan(), np.random.default_rng(i)) for i in range(300)]
    assert {scenario.seed for scenario in scenarios} == set(training.LEARNED_FROM)
    assert max(training.LEARNED_FROM) < 50
    assert {scenario.gpus for scenario in scenarios} == {16, 32, 64}


# the command

Ones = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Ones:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ones", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        code = left.value.code
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return run


def test_the_command_leaves_a_file_that_the_policy_takes(ones: Ones, tmp_path: Path) -> None:
    arguments = ("--iterations", "0", "--jobs", "3", "--json", "--learner", "cem")
    code, out, err = ones("drl", "train", "--out", "mine.json", *arguments)
    assert code == 0, err
    metadata = json.loads(out)
    assert metadata["command"] == "ones drl train --learner cem --iterations 0 --seed 1 --jobs 3"
    assert set(metadata["validation"]) == {"fifo", "checkpoint", "elastic", "checkpoint, sampled"}
    assert "imitating the teacher" in err
    assert from_file(str(tmp_path / "mine.json")).training["validation"] == metadata["validation"]
    use = ("--set", "weights=mine.json")
    code, out, _ = ones("sim", "--policy", "drl", *use, "--jobs", "4", "--gpus", "8", "--json")
    assert code == 0
    assert json.loads(out)["finished"] == 4
    code, _, err = ones("drl", "train", "--out", "mine.json", *arguments)
    assert (code, err) == (2, "ones: mine.json: exists; choose another file, or use --overwrite\n")


def test_control_c_keeps_the_best_and_says_where(
    ones: Ones, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(LEARNERS, "cem", stop)
    code, _, err = ones("drl", "train", "--out", "mine.json", "--jobs", "3", "--iterations", "5")
    assert code == 130
    assert err.endswith("ones: interrupted; the best weights so far are in mine.json\n")
    assert from_file(str(tmp_path / "mine.json")).training["interrupted"]


WRONG = {
    "--learner cen --out a": "unknown learner 'cen'; did you mean 'cem'?",
    "--iterations -1 --out a": "--iterations: -1 is not at least 0",
    "--jobs 0 --out a": "--jobs: 0 is not at least 2",
    "--seed -3 --out a": "--seed: -3 is not at least 0",
    "--out .": ".: is a directory, not a file",
    "--out no/a.json": "no/a.json: the directory no does not exist",
    "--out a --start gone": "gone: cannot be read: No such file or directory",
    "--out a --start text": "text: not the weights of a drl policy (",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_what_cannot_be_is_one_line(ones: Ones, tmp_path: Path, arguments: str) -> None:
    (tmp_path / "text").write_text("hello")
    code, out, err = ones("drl", "train", *arguments.split())
    assert code == 2
    assert out == ""
    assert err.startswith(f"ones: {WRONG[arguments]}")
    assert err.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_shipped_for_every_workload(name: str) -> None:
    found = shipped(name)
    asked = f"--workload paper-{name}" if name else ""
    assert asked in found.training["command"]
    assert set(found.kinds) == set(numbers_of("paper").kinds)
