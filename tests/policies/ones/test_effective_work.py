"""Effective samples of jobs, and the properties that a kind shares."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isfinite

import pytest
from msgspec import structs

from ones.core import JobId, JobView
from ones.models.goodput import ASSUMED_NOISE_RATIO
from ones.policies.ones.predict.effective_work import EffectiveWork, Shape
from tests.policies.ones.jobs import a_job, seen, told


def test_a_sample_of_the_base_batch_counts_as_one() -> None:
    effective_work = EffectiveWork()
    job = told(a_job(), samples=640, noise=64.0, batch=64)
    effective_work.learn(job)
    assert effective_work.done(job) == 640


def test_a_sample_of_a_large_batch_counts_for_less() -> None:
    """(noise + base) / (noise + batch) = 128 / 512."""
    effective_work = EffectiveWork()
    job = told(a_job(), samples=640, noise=64.0, batch=64)
    effective_work.learn(job)
    effective_work.learn(told(job, samples=1640, batch=448))
    assert effective_work.done(job) == 640 + 250


def test_repeated_reports_count_once_and_a_checkpoint_restore_is_subtracted() -> None:
    effective_work = EffectiveWork()
    job = told(a_job(), noise=64.0, batch=64)
    for samples, done in ((500, 500), (500, 500), (300, 300), (0, 0)):
        effective_work.learn(told(job, samples=samples))
        assert effective_work.done(job) == done
    # less is taken back than was counted, never below nothing
    effective_work.learn(told(job, samples=100, batch=448))
    effective_work.learn(told(job, samples=0))
    assert effective_work.done(job) == 0


def test_reported_effective_samples_replace_the_estimate() -> None:
    effective_work = EffectiveWork()
    job = told(a_job(), samples=640, noise=64.0, batch=448)

    def also(job: JobView, effective: float | None) -> JobView:
        return replace(job, progress=replace(job.progress, effective_samples=effective))

    effective_work.learn(also(job, 500.0))
    assert effective_work.done(job) == 500.0
    effective_work.learn(told(job, samples=1640))  # not told: the estimate goes on from there
    assert effective_work.done(job) == 500.0 + 250
    effective_work.learn(also(told(job, samples=1700), 600.0))
    assert effective_work.done(job) == 600.0


def test_noise_is_that_of_the_job_or_its_kind_or_a_multiple_of_the_base_batch() -> None:
    effective_work = EffectiveWork()
    own = told(a_job(), samples=10, noise=77.0)
    other = replace(a_job(), job=structs.replace(own.job, id=JobId("b")))
    assert effective_work.noise(other) == ASSUMED_NOISE_RATIO * 64
    effective_work.learn(own)
    assert effective_work.noise(own) == effective_work.noise(other) == 77.0
    assert effective_work.noise(seen(kind="another")[1]) == ASSUMED_NOISE_RATIO * 64
    effective_work.learn(told(own, noise=-256.0))
    assert effective_work.noise(other) == 0.0


def test_a_job_that_has_not_joined_has_the_shape_of_the_last_job_of_its_kind() -> None:
    effective_work = EffectiveWork()
    joined = a_job(size=5_000)
    waiting = replace(joined, description=None)
    assert effective_work.shape(waiting) is None
    effective_work.joined(joined)
    assert effective_work.shape(waiting) == Shape(5_000, 64, 256)
    assert effective_work.shape(a_job(size=7_000)) == Shape(7_000, 64, 256)  # its own is its own


def test_an_ended_job_is_forgotten_and_its_kind_is_not() -> None:
    effective_work = EffectiveWork()
    job = told(a_job(), samples=10, noise=77.0, batch=64)
    effective_work.joined(job)
    effective_work.learn(job)
    effective_work.forget(job.id)
    assert effective_work.done(job) == 0
    assert effective_work.noise(a_job()) == 77.0
    assert effective_work.shape(replace(job, description=None)) is not None


def test_a_loaded_count_continues() -> None:
    one, other = EffectiveWork(), EffectiveWork()
    job = told(a_job(), samples=640, noise=64.0, batch=448)
    one.joined(job)
    one.learn(job)
    other.load(json.loads(json.dumps(one.save())))
    for effective_work in (one, other):
        effective_work.learn(told(job, samples=1640))
        assert effective_work.done(job) == pytest.approx(1640 / 4)
        assert effective_work.shape(replace(job, description=None)) == Shape(10_000, 64, 256)
    assert one.save() == other.save()


def test_jobs_without_a_kind_share_neither_noise_nor_shape() -> None:
    effective_work = EffectiveWork()
    own = told(a_job(), samples=10, noise=77.0)
    one = replace(own, job=structs.replace(own.job, kind=""))
    other = replace(a_job(), job=structs.replace(one.job, id=JobId("b")), description=None)
    effective_work.joined(one)
    effective_work.learn(one)
    assert effective_work.noise(one) == 77.0
    assert effective_work.noise(other) == ASSUMED_NOISE_RATIO
    assert effective_work.shape(other) is None
    effective_work.forget(one.id)
    assert effective_work.save()["noise"] == effective_work.save()["shapes"] == {}


def test_an_absurd_noise_scale_leaves_all_figures_finite() -> None:
    work = EffectiveWork()
    job = told(a_job(), samples=640, noise=1e308, batch=448)
    work.learn(job)
    assert work.done(job) == pytest.approx(640)
    assert work.efficiency_of(job) == pytest.approx(1.0)
    assert isfinite(work.noise(job))
