"""What models and loaders need when workers change: with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.elastic import elastic
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
