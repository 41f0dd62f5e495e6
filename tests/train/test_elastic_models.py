"""What models and loaders need when workers change: with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train.elastic import elastic
from tests.train.test_background_transfer import all_end_equal
from tests.train.test_equivalence import every_sample_exactly_once, replicas_are_equal

SCHEDULE = "0:1,9:3,20:2"


def test_batch_norm_is_equal_everywhere_after_a_switch(zygote: str, tmp_path: Path) -> None:
    """27 samples and batches of 13: one sample is left over, which batch norm cannot take."""
    job = elastic(zygote, tmp_path, SCHEDULE, NORM=1, SAMPLES=27, BATCH=13, EPOCHS=15)
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 3, 2]
    assert replicas_are_equal(job) == 3
    every_sample_exactly_once(job, 15, 27)
    assert min(len(t["indices"]) for t in job.traces) >= 2


def test_loader_workers_read_ahead_and_nothing_is_lost(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, SCHEDULE, LOADERS=1, EPOCHS=3)
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 3, 2]
    every_sample_exactly_once(job, 3, 203)
    job.nothing_is_left()


@pytest.mark.parametrize("seed", range(3))
def test_every_sample_exactly_once_under_random_schedules(
    zygote: str, tmp_path: Path, seed: int
) -> None:
    import random

    rng = random.Random(seed)
    steps = sorted(rng.sample(range(1, 60), 7))
    phases = [f"{step}:{rng.randint(1, 4)}x{rng.randint(4, 40)}" for step in (0, *steps)]
    job = elastic(zygote, tmp_path, ",".join(phases), EPOCHS=12, LIMIT=7)
    outcome = job.play()
    assert len(outcome.switches) == 8
    every_sample_exactly_once(job, 12, 203)
    replicas_are_equal(job)
    job.nothing_is_left()


@pytest.mark.parametrize("clip", ["", 0.5])
def test_gradients_that_overflow_in_one_worker_are_skipped_by_all(
    zygote: str, tmp_path: Path, clip: object
) -> None:
    """Mixed precision with a GradScaler: steps 10 and 25 are infinite in some workers, the scale
    is halved everywhere, and joining workers continue with it."""
    job = elastic(
        zygote, tmp_path, "0:2,14:4,30:3", exact=False, NAP=0.02, AMP=1, OVERFLOW=1, CLIP=clip,
        DTYPE="float32", EPOCHS=6, HOLD="14:replica-*-4-*,30:replica-*-3-*",
    )  # fmt: skip
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [2, 4, 3]
    assert replicas_are_equal(job) == 3
    every_sample_exactly_once(job, 6, 203)
    all_end_equal(job, 3)
    ends = [torch.load(path, weights_only=True)["scaler"] for path in job.out.glob("end-*.pt")]
    steps, halved, doubled = 6 * 13, 2, 2  # good steps in a row: 10, 14, and 52 of them
    assert {end["scale"] for end in ends} == {1024.0 / 2**halved * 2**doubled}
    assert job.final()["steps"] == steps
