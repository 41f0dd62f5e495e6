"""A job that was re-scaled ends where one process with the same global batches ends."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ones.lab.scripted_policy import parse_schedule
from ones.train.learning_rate import LearningRate, rule_for
from ones.train.sampler import permutation, step_samples
from tests.train.elastic import Elastic, elastic
from tests.train.scripts.parts import Samples, build, optimizer_of

SCHEDULE = "0:1x16,9:2x21,20:4x30,33:3x17,45:1x10"  # uneven shares, and a batch per phase
SAMPLES, EPOCHS, BASE = 203, 5, 16


def reference(
    optimizer: str,
    weighted: bool = False,
    dtype: torch.dtype = torch.float64,
    norm: bool = False,
    schedule: str = SCHEDULE,
    samples: int = SAMPLES,
    base: int = BASE,
    epochs: int = EPOCHS,
    *,
    convolution: bool = False,
) -> tuple[nn.Module, list[int]]:
    """One process, and nothing of the library but two rules that are tested elsewhere."""
    net, data = build(norm, dtype, convolution=convolution), Samples(samples, dtype)
    opt = optimizer_of(net, optimizer)
    phases = parse_schedule(schedule, 4)
    rate = LearningRate(rule_for(opt, None), base, 5)
    step, batches = 0, []
    for epoch in range(epochs):
        order, offset = permutation(samples, seed=0, epoch=epoch), 0
        while offset < samples:
            batch = [p.batch for p in phases if p.step <= step][-1]
            assert batch is not None
            rate.set_batch(batch, step)
            count = step_samples(samples - offset, batch)
            picked = torch.as_tensor(order[offset : offset + count])
            valid = picked % 3 != 0 if weighted else picked >= 0
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(data.x[picked])[valid], data.y[picked][valid])
            torch.autograd.backward(loss)
            with rate.applied(opt, step):
                opt.step()
            step, offset = step + 1, offset + count
            batches.append(count)
    return net, batches


def replicas_are_equal(job: Elastic) -> int:
    """Tensor by tensor, bit by bit, in all workers after each switch."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in job.out.glob("replica-*.pt"):
        match = re.fullmatch(r"replica-(\d+)-(\d+)-.*", path.stem)
        assert match is not None
        found.setdefault((match[1], match[2]), []).append(path)
    for (_, workers), paths in found.items():
        assert len(paths) == int(workers)
        states = [torch.load(path, weights_only=True) for path in paths]
        for state in states[1:]:
            assert equal(states[0], state)
    return len(found)


def equal(a: Any, b: Any) -> bool:  # noqa: ANN401
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def every_sample_exactly_once(job: Elastic, epochs: int, samples: int) -> None:
    for epoch in range(epochs):
        seen = Counter(i for t in job.traces if t["epoch"] == epoch for i in t["indices"])
        assert seen == Counter(range(samples)), f"epoch {epoch}"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("limit", ["", 4])
def test_a_rescaled_job_equals_one_process(
    zygote: str, tmp_path: Path, optimizer: str, limit: object
) -> None:
    job = elastic(
        zygote, tmp_path, SCHEDULE, OPTIMIZER=optimizer, LIMIT=limit, EPOCHS=EPOCHS,
        SAMPLES=SAMPLES, BATCH=BASE,
    )  # fmt: skip
    outcome = job.play()
    net, batches = reference(optimizer)
    assert [len(s.members) for _, s in outcome.switches] == [1, 2, 4, 3, 1]
    assert [s.step for _, s in outcome.switches] == [0, 9, 20, 33, 45]
    final = job.final()
    assert final["steps"] == len(batches)
    apart = [
        float((value - net.state_dict()[name]).abs().max()) for name, value in final["net"].items()
    ]
    assert max(apart) < 1e-10
    assert replicas_are_equal(job) == 5
    every_sample_exactly_once(job, EPOCHS, SAMPLES)
    assert [(e.epoch, e.samples) for e in outcome.epochs] == [
        (epoch + 1, SAMPLES) for epoch in range(EPOCHS)
    ]
    job.nothing_is_left()


def test_ignored_targets_weigh_nothing_on_any_worker(zygote: str, tmp_path: Path) -> None:
    """A third of the targets is ignored, and unevenly: workers count by the valid ones."""
    job = elastic(
        zygote, tmp_path, SCHEDULE, WEIGHTED=1, LIMIT=3, EPOCHS=EPOCHS, SAMPLES=SAMPLES, BATCH=BASE
    )
    job.play()
    net, _ = reference("sgd", weighted=True)
    final = job.final()["net"]
    apart = [float((value - net.state_dict()[name]).abs().max()) for name, value in final.items()]
    assert max(apart) < 1e-10


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_in_float32_it_differs_by_rounding_only(
    zygote: str, tmp_path: Path, optimizer: str
) -> None:
    """Sums over workers and micro-batches are added up in another order. After 60 steps that is
    less than 1e-5 in parameters of size 1 with SGD, 1e-4 with AdamW, which divides by
    the gradient's own size."""
    job = elastic(
        zygote, tmp_path, SCHEDULE, OPTIMIZER=optimizer, LIMIT=4, EPOCHS=EPOCHS, DTYPE="float32",
        SAMPLES=SAMPLES, BATCH=BASE,
    )  # fmt: skip
    job.play()
    net, _ = reference(optimizer, dtype=torch.float32)
    final = job.final()["net"]
    apart = [float((value - net.state_dict()[name]).abs().max()) for name, value in final.items()]
    assert max(apart) < (1e-5 if optimizer == "sgd" else 1e-4)
    assert replicas_are_equal(job) == 5


@pytest.mark.parametrize("weighted", [False, True])
def test_synchronised_batch_norm_is_that_of_one_process(
    zygote: str, tmp_path: Path, weighted: bool
) -> None:
    """Statistics, running ones too, and gradients are those of the global batch."""
    schedule, samples = "0:1x20,7:2x20,15:4x20,28:3x20,40:1x20", 200
    job = elastic(
        zygote, tmp_path, schedule, NORM="together", EPOCHS=EPOCHS, SAMPLES=samples, BATCH=20,
        WEIGHTED=1 if weighted else "",
    )  # fmt: skip
    job.play()
    net, _ = reference("sgd", weighted, norm=True, schedule=schedule, samples=samples, base=20)
    final = job.final()["net"]
    apart = {n: float((value - net.state_dict()[n]).abs().max()) for n, value in final.items()}
    assert max(apart.values()) < 1e-10, apart
    assert replicas_are_equal(job) == 5
