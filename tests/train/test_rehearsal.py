"""A rehearsal leaves nothing behind but what is warm."""

from __future__ import annotations

import os
import random
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ones.train.rehearsal import rehearse, share_compile_cache
from ones.train.tensor_messages import copy_to_cpu
from tests.train.test_equivalence import equal

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def fetch(count: int) -> Tensor:
    return torch.rand(count, 4) * random.random() * float(np.random.rand())  # noqa: NPY002


def test_buffers_gradients_and_random_numbers_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before: Any = copy_to_cpu(model.state_dict())
    seen: list[int] = []

    def loss_of(x: Tensor) -> Tensor:
        seen.append(len(x))
        loss: Tensor = model(x).square().mean()
        return loss

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    expected = draw()
    seed()
    rehearse(model, loss_of, fetch, [8, 4], CPU)
    assert draw() == expected
    assert seen == [8, 4]
    assert equal(before, model.state_dict())
    assert all(p.grad is None for p in model.parameters())


def test_an_error_is_left_to_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(4, 4)

    def loss_of(x: Tensor) -> Tensor:
        raise KeyError("labels")

    rehearse(model, loss_of, fetch, [8], CPU)
    assert "the rehearsal failed, training goes on: KeyError: 'labels'" in caplog.text


def test_a_compile_cache_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    default = os.path.join(tempfile.gettempdir(), "torchinductor_me")
    for chosen, expected in (
        ("/cache/mine", "/cache/mine"),
        (default, "/job/inductor"),
        ("", "/job/inductor"),
    ):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", chosen)
        share_compile_cache("/job")
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == expected
