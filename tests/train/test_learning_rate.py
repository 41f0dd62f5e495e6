"""The learning rate follows the batch and lets the user's schedule be."""

from __future__ import annotations

import pytest
import torch

from ones.errors import InvalidSettingError
from ones.train.learning_rate import LearningRate, rule_for


def optimizer(kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> torch.optim.Optimizer:
    return kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "wanted", "factor"),
    [
        (torch.optim.SGD, None, 4.0),
        (torch.optim.Adam, None, 2.0),
        (torch.optim.AdamW, None, 2.0),
        (torch.optim.SGD, "none", 1.0),
        (torch.optim.SGD, lambda ratio: ratio + 1.0, 5.0),
    ],
)
def test_the_rule_fits_the_optimizer(
    kind: type[torch.optim.Optimizer], wanted: object, factor: float
) -> None:
    assert rule_for(optimizer(kind), wanted)(4.0) == factor  # type: ignore[arg-type]


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(InvalidSettingError, match="lr_rule 'cubic' is not one of linear, sqrt"):
        rule_for(optimizer(), "cubic")


def test_the_factor_rises_over_the_ramp_and_falls_at_once() -> None:
    rate = LearningRate(lambda ratio: ratio, base_batch=10, ramp_steps=4)
    rate.set_batch(10, step=0)
    assert rate.factor(0) == 1.0
    rate.set_batch(20, step=100)
    factors = [rate.factor(step) for step in range(100, 106)]
    assert factors == pytest.approx([1.2, 1.4, 1.6, 1.8, 2.0, 2.0])
    rate.set_batch(5, step=102)
    assert rate.factor(102) == 0.5


def test_the_schedule_is_multiplied_and_never_overwritten() -> None:
    opt = optimizer()
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    rate = LearningRate(lambda ratio: ratio, base_batch=10)
    rate.set_batch(30, step=0)
    used = []
    for step in range(3):
        with rate.applied(opt, step):
            used.append(opt.param_groups[0]["lr"])
            opt.step()
        schedule.step()
    assert used == pytest.approx([0.3, 0.15, 0.075])
    assert opt.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


def test_a_rule_that_gives_nothing_is_refused() -> None:
    rate = LearningRate(lambda ratio: 0.0, base_batch=10)
    problem = r"lr_rule returns 0\.0 for batch 20, base batch 10"
    with pytest.raises(InvalidSettingError, match=problem):
        rate.set_batch(20, step=0)
