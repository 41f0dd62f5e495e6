"""What the predictor keeps of jobs, and what of them teaches nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import JobId
from ones.policies.ones.predict.history import History, Lesson
from ones.policies.ones.predict.progress import (
    ProgressModel,
)
from tests.policies.ones.lessons import NEW, epochs_left, epochs_of_job, taught, teach


@given(st.integers(1, 200))
@settings(max_examples=10)
def test_failed_and_killed_jobs_teach_nothing(epochs: int) -> None:
    one, other = ProgressModel(), ProgressModel()
    rng = np.random.default_rng(4)
    for i in range(4):
        job = epochs_of_job(rng)
        teach(one, f"j{i}", job)
        teach(other, f"j{i}", job)
        dead = [replace(NEW, samples=1000.0 * e) for e in range(1, epochs)]
        teach(other, f"dead{i}", dead, completed=False)
    other.finished(JobId("never heard of"), completed=False)
    assert one.save() == other.save()


def test_the_history_of_ten_thousand_jobs_is_bounded() -> None:
    history = History(points=1000, per_job=50, seed=0)
    rows = np.zeros((60, 5))
    for i in range(10_000):
        n = 1 + i % 50
        rho = np.linspace(0.01, 0.99, n)
        history.learn(Lesson(str(i), rows[:n], np.ones(n), rho))
        assert i % 100 or history.n_points <= 1000
    assert history.n_completed == 10_000
    assert len(history.lessons) == 1000
    numbers = sorted(int(lesson.kind) for lesson in history.lessons)
    assert 4000 < np.mean(numbers) < 6000  # of all times, not of the first or last


def test_long_jobs_do_not_outvote_short_ones() -> None:
    history = History(points=100, per_job=50, seed=0)
    for i, epochs in enumerate([400] * 10 + [6] * 5):
        for e in range(1, epochs + 1):
            history.record(JobId(str(i)), replace(NEW, samples=1000.0 * e))
        lesson = history.ended(JobId(str(i)), completed=True)
        assert lesson is not None
        assert min(epochs - 1, 25) <= len(lesson) <= 50
        assert np.allclose(lesson.rho, lesson.alpha / epochs)
        assert lesson.rho.max() > 0.7  # over all its epochs, not the first ones
        history.learn(lesson)
    counts = [len(lesson) for lesson in history.lessons]
    assert sum(counts) == 100
    assert counts[10:] == [5] * 5
    assert set(counts[:10]) <= {7, 8}


def test_a_repeated_epoch_counts_once() -> None:
    history = History(points=100, per_job=50, seed=0)
    for e in (1, 2, 2, 3, 4, 5, 3, 4, 5, 6):
        history.record(JobId("a"), replace(NEW, samples=1000.0 * e))
    lesson = history.ended(JobId("a"), completed=True)
    assert lesson is not None
    assert lesson.alpha.tolist() == [1, 2, 3, 4, 5]


def test_the_length_may_exceed_the_samples_of_the_last_epoch() -> None:
    history = History(points=100, per_job=2, seed=0)
    for e in (1, 2, 3):
        history.record(JobId("a"), replace(NEW, samples=1000.0 * e))
    lesson = history.ended(JobId("a"), completed=True, samples=4000.0)
    assert lesson is not None
    assert lesson.rho.tolist() == [0.25, 0.5]  # two of a job, no more


def test_a_loaded_model_continues_identically() -> None:
    rng = np.random.default_rng(6)
    jobs = [epochs_of_job(rng, kind=("cnn", "bert")[i % 2]) for i in range(24)]
    jobs[3] = [replace(f, accuracy=None) for f in jobs[3]]
    one = ProgressModel(seed=1)
    for i, job in enumerate(jobs[:12]):
        teach(one, f"j{i}", job)
    jobs[12] = epochs_of_job(rng, scatter=0.0)
    jobs[12][5] = replace(jobs[12][5], loss=float("nan"))
    for features in jobs[12][:30]:
        one.record_epoch(JobId("half"), features)
    other = ProgressModel(seed=2)
    other.load(json.loads(json.dumps(one.save(), allow_nan=False)))
    assert other.save() == one.save()
    for model in (one, other):
        for features in jobs[12][30:]:
            model.record_epoch(JobId("half"), features)
        model.finished(JobId("half"), completed=True)
        for i, job in enumerate(jobs[13:]):
            teach(model, f"k{i}", job)
    assert other.save() == one.save()
    np.testing.assert_array_equal(one.predict(jobs[0]), other.predict(jobs[0]))


def test_predicting_changes_nothing() -> None:
    model = taught(12)
    before = model.save()
    alpha, beta = model.predict([NEW, NEW])
    model.quantiles(alpha, beta, 8)
    model.forecast(NEW, alpha[0], beta[0])
    assert model.save() == before


def test_a_job_of_one_epoch_teaches_nothing() -> None:
    model = ProgressModel()
    teach(model, "short", [replace(NEW, samples=1000.0)])
    assert model.n_completed == 0
    assert epochs_left(model, NEW) == [30.0]
