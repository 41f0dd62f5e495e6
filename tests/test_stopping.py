"""When a job has trained enough: laws of the stop rules."""

from __future__ import annotations

import csv
from math import nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from ones.stopping import StopReason, StopRule, Track, after_epoch
from tests.strategies import stop_rules

accuracies = st.none() | st.floats(0, 1)
losses = st.none() | st.floats(0, 100)
Epoch = tuple[float | None, float | None]  # loss, accuracy
epochs = st.lists(st.tuples(losses, accuracies), max_size=40)


def ends(rule: StopRule, told: list[Epoch]) -> list[StopReason | None]:
    """What the rule says after each epoch, up to its first reason to stop."""
    track, said = Track(), []
    for loss, accuracy in told:
        track, reason = after_epoch(rule, track, loss=loss, accuracy=accuracy)
        said.append(reason)
        if reason is not None:
            break
    return said


def with_accuracies(*values: float | None) -> list[Epoch]:
    return [(1.0, value) for value in values]


@given(stop_rules, epochs)
def test_every_epoch_counts_once(rule: StopRule, told: list[Epoch]) -> None:
    track = Track()
    for n, (loss, accuracy) in enumerate(told, 1):
        track, _ = after_epoch(rule, track, loss=loss, accuracy=accuracy)
        assert track.epochs == n


@given(stop_rules, epochs)
def test_only_a_rule_that_is_set_can_end_a_job(rule: StopRule, told: list[Epoch]) -> None:
    said = set(ends(rule, told))
    assert rule.target_accuracy is not None or StopReason.TARGET not in said
    assert rule.patience is not None or StopReason.PLATEAU not in said
    assert rule.max_epochs is not None or StopReason.EPOCHS not in said


@given(epochs)
def test_without_a_rule_a_job_goes_on(told: list[Epoch]) -> None:
    assert set(ends(StopRule(), told)) <= {None}


@given(stop_rules, epochs)
def test_no_job_goes_beyond_its_most_epochs(rule: StopRule, told: list[Epoch]) -> None:
    if rule.max_epochs is None or len(told) < rule.max_epochs:
        return
    said = ends(rule, told)
    assert len(said) <= rule.max_epochs
    assert said[-1] is not None


@given(stop_rules, epochs)
def test_the_target_is_reached_by_enough_epochs_in_a_row_above_it(
    rule: StopRule, told: list[Epoch]
) -> None:
    said = ends(rule, told)
    if rule.target_accuracy is None:
        return
    above = [
        accuracy is not None and accuracy > rule.target_accuracy
        for _, accuracy in told[: len(said)]
    ]
    reached = len(above) >= rule.target_epochs and all(above[-rule.target_epochs :])
    assert (bool(said) and said[-1] is StopReason.TARGET) == (bool(said) and reached)


@given(stop_rules, epochs, st.integers(1, 10))
def test_more_patience_never_ends_a_job_sooner(
    rule: StopRule, told: list[Epoch], more: int
) -> None:
    if rule.patience is None:
        return
    patient = StopRule(
        target_accuracy=rule.target_accuracy,
        target_epochs=rule.target_epochs,
        patience=rule.patience + more,
        max_epochs=rule.max_epochs,
    )
    assert len(ends(patient, told)) >= len(ends(rule, told))


@given(st.integers(1, 5), st.lists(st.floats(0, 1), unique=True, min_size=1, max_size=20))
def test_a_job_that_gets_better_every_time_is_left_alone(
    patience: int, values: list[float]
) -> None:
    rule = StopRule(patience=patience)
    assert set(ends(rule, with_accuracies(*sorted(values)))) == {None}


@given(st.integers(1, 5), st.floats(0, 1))
def test_a_job_without_improvement_ends_after_its_patience(patience: int, value: float) -> None:
    said = ends(StopRule(patience=patience), with_accuracies(*[value] * 20))
    assert said == [None] * patience + [StopReason.PLATEAU]


@given(st.integers(1, 5), st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_without_accuracy_a_falling_loss_is_an_improvement(
    patience: int, values: list[float]
) -> None:
    by_loss: list[Epoch] = [(value, None) for value in values]
    by_merit: list[Epoch] = [(None, -value) for value in values]
    rule = StopRule(patience=patience)
    assert ends(rule, by_loss) == ends(rule, by_merit)


def test_an_epoch_without_measurement_does_not_count_for_patience() -> None:
    told: list[Epoch] = [(None, 0.5), *[(None, None)] * 30]
    assert set(ends(StopRule(patience=1), told)) == {None}


def test_a_target_is_exceeded_not_met() -> None:
    rule = StopRule(target_accuracy=0.8)
    assert ends(rule, with_accuracies(0.8, 0.8, 0.81))[-2:] == [None, StopReason.TARGET]


@pytest.mark.parametrize("between", [0.7, 0.8, None, nan])
def test_an_epoch_below_the_target_begins_the_row_anew(between: float | None) -> None:
    rule = StopRule(target_accuracy=0.8, target_epochs=2)
    said = ends(rule, with_accuracies(0.9, between, 0.9, 0.9))
    assert said == [None, None, None, StopReason.TARGET]


@pytest.mark.parametrize("first", [(nan, None), (1.0, nan)])
def test_a_measure_that_is_no_number_is_never_the_best(first: Epoch) -> None:
    """A loss that exploded once must not make every later one look no better."""
    told: list[Epoch] = [first, (0.9, 0.1), (0.8, 0.2), (0.7, 0.3), (0.6, 0.4)]
    assert set(ends(StopRule(patience=2), told)) == {None}


def test_no_numbers_at_all_end_when_patience_does() -> None:
    told: list[Epoch] = [(nan, None)] * 5
    assert ends(StopRule(patience=3), told) == [None, None, StopReason.PLATEAU]


def test_of_several_reasons_quality_is_told_first() -> None:
    all_at_once = StopRule(target_accuracy=0.5, patience=1, max_epochs=2)
    assert ends(all_at_once, with_accuracies(0.5, 0.6))[-1] is StopReason.TARGET
    assert ends(all_at_once, with_accuracies(0.5, 0.5))[-1] is StopReason.PLATEAU
    assert ends(all_at_once, with_accuracies(0.4, 0.5))[-1] is StopReason.EPOCHS


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target_accuracy": 1.5}, r"target_accuracy 1\.5 is not in 0\.\.1"),
        ({"target_accuracy": -0.1}, r"target_accuracy -0\.1 is not in 0\.\.1"),
        ({"target_accuracy": nan}, r"target_accuracy nan is not in 0\.\.1"),
        ({"target_epochs": 0}, "target_epochs 0 is not at least 1"),
        ({"patience": 0}, "patience 0 is not at least 1"),
        ({"max_epochs": -1}, "max_epochs -1 is not at least 1"),
    ],
)
def test_an_impossible_rule_cannot_be_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StopRule(**wrong)


# the joint rule of the paper's authors


def joint(patience: int = 3, target: float | None = 0.8) -> StopRule:
    return StopRule(target_accuracy=target, patience=patience, joint=True, min_gain=0.01)


def test_a_joint_rule_counts_epochs_at_the_target_and_epochs_without_gain_together() -> None:
    said = ends(joint(), with_accuracies(0.5, 0.505, 0.8, 0.9, 0.95))
    # the second and third count: no gain of 0.01, and the target exactly; the fourth ends the job
    assert said == [None, None, None, StopReason.TARGET]
    said = ends(joint(), with_accuracies(0.5, 0.505, 0.505, 0.52, 0.525, 0.529, 0.5))
    assert said == [None] * 6 + [StopReason.PLATEAU]


def test_a_gain_below_the_target_resets_the_joint_counter() -> None:
    said = ends(joint(), with_accuracies(0.85, 0.7, 0.9, 0.95))
    assert said == [None, None, StopReason.TARGET]  # 0.7 is no gain
    said = ends(joint(), with_accuracies(0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2))
    assert said == [None] * 6 + [StopReason.PLATEAU]


def test_small_steps_add_up_to_a_gain() -> None:
    """The best is the last value that gained, so slow learning is not taken for none."""
    values = [0.1 + 0.004 * n for n in range(100)]
    assert set(ends(joint(), with_accuracies(*values))) == {None}


def test_a_job_that_never_learns_ends_after_its_patience() -> None:
    said = ends(joint(10), with_accuracies(*[0.1] * 20))
    assert said == [None] * 10 + [StopReason.PLATEAU]


def test_a_joint_rule_needs_a_patience_and_a_gain_of_at_least_0() -> None:
    with pytest.raises(ValueError, match="joint needs a patience"):
        StopRule(target_accuracy=0.8, joint=True)
    with pytest.raises(ValueError, match=r"min_gain -0\.1 is not"):
        StopRule(min_gain=-0.1)


def test_a_rule_of_an_earlier_log_has_neither() -> None:
    text = b'{"target_accuracy": 0.8, "target_epochs": 10, "patience": 3}'
    rule = json.decode(text, type=StopRule)
    assert (rule.joint, rule.min_gain) == (False, 0.0)
    assert b"joint" not in json.encode(rule)


HISTORY = Path(__file__).parents[2] / "shared" / "data" / "ones_sc21" / "job_history.csv"
#: first global batch and learning rate of a recorded run -> target, patience
RECORDED = {
    ("32", 1e-5): (0.80, 5),
    ("256", 2e-5): (0.90, 5),
    ("1024", 0.02): (0.70, 10),
    ("512", 0.004): (0.70, 10),
    ("512", 0.01): (0.70, 10),
    ("1024", 0.004): (0.25, 20),
    ("512", 0.008): (0.55, 10),
}


@pytest.mark.skipif(
    not HISTORY.exists(), reason="the recorded runs of the paper's authors are not beside this"
)
def test_the_joint_rule_would_end_all_recorded_runs_with_their_next_epoch() -> None:
    runs: list[list[dict[str, str]]] = []
    with HISTORY.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["epoch"] == "1":  # two runs have the id 0
                runs.append([])
            runs[-1].append(row)
    assert len(runs) == 21
    for number, rows in enumerate(runs):
        target, patience = RECORDED[rows[0]["batch_size"], float(rows[0]["lr"])]
        rule, track = joint(patience, target), Track()
        for row in rows:
            loss, accuracy = float(row["loss"]), float(row["acc"])
            track, reason = after_epoch(rule, track, loss=loss, accuracy=accuracy)
            assert reason is None, number
        assert track.stale == patience - 1, number
