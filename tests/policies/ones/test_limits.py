"""The largest batch: by the user, the data, the memory, and no sudden growth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ones.policies.ones.score.limits import MAX_PARTS, largest_batch, largest_batches
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.jobs import a_job

SIZES = np.array([1, 2, 4, 8])


@given(st.integers(1, 1000), st.integers(1, 4000), st.integers(100, 100_000), st.integers(1, 9999))
def test_a_batch_keeps_within_data_base_batch_and_the_users_limit(
    base: int, local: int, samples: int, most: int
) -> None:
    job = a_job(base=base, size=samples, limit=local)
    limit = largest_batch(job, OnesSettings())
    assert 1 <= limit <= max(min(base, local), min(samples // 10, 32 * base))
    limited = replace(job, job=structs.replace(job.job, max_batch=most))
    assert largest_batch(limited, OnesSettings()) == min(limit, most)


def test_a_batch_grows_fourfold_within_an_epoch_at_most() -> None:
    job = a_job()
    assert largest_batches(job, SIZES, 1000, 64, OnesSettings()).tolist() == [256] * 4
    assert largest_batches(job, SIZES, 1000, 0, OnesSettings()).tolist() == [1000] * 4


def test_the_number_of_accumulation_steps_is_limited() -> None:
    job = a_job(limit=4)
    found = largest_batches(job, SIZES, 10**6, 0, OnesSettings())
    assert found.tolist() == (4 * MAX_PARTS * SIZES).tolist()


def test_every_worker_has_a_sample() -> None:
    assert largest_batches(a_job(), SIZES, 2, 0, OnesSettings()).tolist() == [2, 2, 4, 8]
