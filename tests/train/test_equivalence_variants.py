"""A rescaled job equals one process: variants of optimizer, model and precision, with gloo and with
groups that keep to the rules of NCCL.

torch allows capturable optimizers on devices only: `ones doctor --gpu --emulate` has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.elastic import elastic
from tests.train.test_equivalence import (
    BASE,
    EPOCHS,
    SAMPLES,
    SCHEDULE,
    every_sample_exactly_once,
    reference,
    replicas_are_equal,
)

EXACT: dict[str, Any] = dict(EPOCHS=EPOCHS, SAMPLES=SAMPLES, BATCH=BASE)
BACKENDS = [pytest.param({}, id="gloo"), pytest.param({"STRICT": 1}, id="strict")]
SYNCHRONISED = "0:1x20,7:2x20,15:4x20,28:3x20,40:1x20"  # even shares


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "variant", ["sgd-foreach", "sgd-fused", "adamw-foreach", "adamw-fused", "channels_last"]
)
def test_it_equals_one_process(
    zygote: str, tmp_path: Path, variant: str, backend: dict[str, Any]
) -> None:
    is_convolution = variant == "channels_last"
    optimizer = "adamw" if is_convolution else variant
    of: dict[str, Any] = {"CONVOLUTION": 1} if is_convolution else {}
    job = elastic(zygote, tmp_path, SCHEDULE, OPTIMIZER=optimizer, **EXACT, **of, **backend)
    job.play()
    net, _ = reference(optimizer, convolution=is_convolution)
    compare(job.final()["net"], net, 1e-10)
    assert replicas_are_equal(job) == 5
    every_sample_exactly_once(job, EPOCHS, SAMPLES)
    job.nothing_is_left()


def compare(final: dict[str, torch.Tensor], net: torch.nn.Module, most: float) -> None:
    expected = net.state_dict()
    apart = {name: float((value - expected[name]).abs().max()) for name, value in final.items()}
    assert max(apart.values()) < most, apart


def test_synchronised_batch_norm_on_a_device(zygote: str, tmp_path: Path) -> None:
    job = elastic(
        zygote, tmp_path, SYNCHRONISED, NORM="together", EPOCHS=EPOCHS, SAMPLES=200, BATCH=20,
        STRICT=1,
    )  # fmt: skip
    job.play()
    net, _ = reference("sgd", norm=True, schedule=SYNCHRONISED, samples=200, base=20)
    compare(job.final()["net"], net, 1e-10)
    assert replicas_are_equal(job) == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_and_a_gradient_scaler(zygote: str, tmp_path: Path, backend: dict[str, Any]) -> None:
    """Rounding to bfloat16 depends on the shares: replicas are equal, not the sums of one process.
    In two steps a worker overflows, and all skip the update."""
    job = elastic(
        zygote, tmp_path, SCHEDULE, DTYPE="float32", AMP=1, OVERFLOW=1, CLIP=1.0, **EXACT, **backend
    )
    job.play()
    assert replicas_are_equal(job) == 5
    every_sample_exactly_once(job, EPOCHS, SAMPLES)
    job.nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_equals_one_process(
    zygote: str, tmp_path: Path, backend: dict[str, Any]
) -> None:
    schedule = "0:1x16,10:2x16,30:1x16"
    job = elastic(zygote, tmp_path, schedule, COMPILE=1, **EXACT, **backend)
    job.play(900.0)
    net, _ = reference("sgd", schedule=schedule)
    compare(job.final()["net"], net, 1e-8)
    assert replicas_are_equal(job) == 3
    assert (job.launcher.job_dir / "inductor").is_dir(), "one cache for the job"
