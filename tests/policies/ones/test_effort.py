"""Work in effective samples: what batches were worth, and what a kind lets expect."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from ones.core import JobId, JobView
from ones.models.goodput import ASSUMED_NOISE_RATIO
from ones.policies.ones.effort import Effort, Shape
from tests.policies.ones.jobs import a_job, seen, told


def test_a_sample_of_the_base_batch_counts_as_one() -> None:
    effort = Effort()
    job = told(a_job(), samples=640, noise=64.0, batch=64)
    effort.learn(job)
    assert effort.done(job) == 640


def test_a_sample_of_a_large_batch_counts_for_less() -> None:
    """(noise + base) / (noise + batch) = 128 / 512."""
    effort = Effort()
    job = told(a_job(), samples=640, noise=64.0, batch=64)
    effort.learn(job)
    effort.learn(told(job, samples=1640, batch=448))
    assert effort.done(job) == 640 + 250


def test_reports_told_twice_count_once_and_a_return_to_a_checkpoint_counts_back() -> None:
    effort = Effort()
    job = told(a_job(), noise=64.0, batch=64)
    for samples, done in ((500, 500), (500, 500), (300, 300), (0, 0)):
        effort.learn(told(job, samples=samples))
        assert effort.done(job) == done
    # less is taken back than was counted, never below nothing
    effort.learn(told(job, samples=100, batch=448))
    effort.learn(told(job, samples=0))
    assert effort.done(job) == 0


def test_effective_samples_that_are_told_replace_the_estimate() -> None:
    effort = Effort()
    job = told(a_job(), samples=640, noise=64.0, batch=448)

    def also(job: JobView, effective: float | None) -> JobView:
        return replace(job, progress=replace(job.progress, effective_samples=effective))

    effort.learn(also(job, 500.0))
    assert effort.done(job) == 500.0
    effort.learn(told(job, samples=1640))  # not told: the estimate goes on from there
    assert effort.done(job) == 500.0 + 250
    effort.learn(also(told(job, samples=1700), 600.0))
    assert effort.done(job) == 600.0


def test_noise_is_its_own_or_its_kinds_or_a_usual_multiple_of_the_base_batch() -> None:
    effort = Effort()
    own = told(a_job(), samples=10, noise=77.0)
    other = replace(a_job(), job=structs.replace(own.job, id=JobId("b")))
    assert effort.noise(other) == ASSUMED_NOISE_RATIO * 64
    effort.learn(own)
    assert effort.noise(own) == effort.noise(other) == 77.0
    assert effort.noise(seen(kind="another")[1]) == ASSUMED_NOISE_RATIO * 64
    effort.learn(told(own, noise=-256.0))
    assert effort.noise(other) == 0.0


def test_a_job_that_has_not_joined_is_thought_to_be_as_the_last_of_its_kind() -> None:
    effort = Effort()
    joined = a_job(size=5_000)
    waiting = replace(joined, description=None)
    assert effort.shape(waiting) is None
    effort.joined(joined)
    assert effort.shape(waiting) == Shape(5_000, 64, 256)
    assert effort.shape(a_job(size=7_000)) == Shape(7_000, 64, 256)  # its own is its own


def test_what_was_counted_is_forgotten_with_the_job_and_the_kind_stays_known() -> None:
    effort = Effort()
    job = told(a_job(), samples=10, noise=77.0, batch=64)
    effort.joined(job)
    effort.learn(job)
    effort.forget(job.id)
    assert effort.done(job) == 0
    assert effort.noise(a_job()) == 77.0
    assert effort.shape(replace(job, description=None)) is not None


def test_a_saved_count_goes_on() -> None:
    one, other = Effort(), Effort()
    job = told(a_job(), samples=640, noise=64.0, batch=448)
    one.joined(job)
    one.learn(job)
    other.load(json.loads(json.dumps(one.save())))
    for effort in (one, other):
        effort.learn(told(job, samples=1640))
        assert effort.done(job) == pytest.approx(1640 / 4)
        assert effort.shape(replace(job, description=None)) == Shape(10_000, 64, 256)
    assert one.save() == other.save()


def test_jobs_without_a_kind_share_neither_noise_nor_shape() -> None:
    effort = Effort()
    own = told(a_job(), samples=10, noise=77.0)
    one = replace(own, job=structs.replace(own.job, kind=""))
    other = replace(a_job(), job=structs.replace(one.job, id=JobId("b")), description=None)
    effort.joined(one)
    effort.learn(one)
    assert effort.noise(one) == 77.0
    assert effort.noise(other) == ASSUMED_NOISE_RATIO
    assert effort.shape(other) is None
    effort.forget(one.id)
    assert effort.save()["noise"] == effort.save()["shapes"] == {}
