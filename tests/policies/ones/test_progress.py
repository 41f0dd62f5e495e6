"""The progress predictor: it learns from completed jobs only, and knows how little it knows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import Cluster, Event, Job, JobId, State
from ones.core.events import EpochFinished, JobDescribed, JobEnded, JobSubmitted
from ones.core.plan import PlanAdopted
from ones.core.transitions import apply
from ones.core.view import JobView, View
from ones.policies.fifo import Fifo
from ones.policies.ones.predict.estimate_weights import EstimateWeights
from ones.policies.ones.predict.history import MOST_EPOCHS
from ones.policies.ones.predict.kind_lengths import KindLengths
from ones.policies.ones.predict.progress import (
    Features,
    ProgressModel,
    features_of,
)
from ones.sim import Simulator
from ones.workload import generate
from tests.policies.ones.lessons import NEW, epochs_left, epochs_of_job, taught, teach

losses = st.none() | st.floats(-10, 1e4) | st.just(float("nan")) | st.just(float("inf"))
any_features = st.builds(
    Features,
    dataset_size=st.integers(1, 10**9),
    samples=st.floats(0, 1e12),
    first_loss=losses,
    loss=losses,
    accuracy=st.none() | st.floats(0, 1),
    kind=st.sampled_from(["", "cnn", "bert", "never seen"]),
    declared_epochs=st.none() | st.integers(1, 1000),
)

trained = cache(lambda: taught(40))


def test_lengths_of_the_kind_predict_better_than_features() -> None:
    """Two kinds that look the same, of 12 and 40 epochs: told apart before the first epoch."""
    rng = np.random.default_rng(2)
    model = ProgressModel()
    for i in range(30):
        for kind, mean in (("cnn", 40.0), ("bert", 12.0)):
            job = epochs_of_job(rng, kind=kind, mean=mean, scatter=0.1)
            teach(model, f"{kind}{i}", job)
    new = [replace(NEW, dataset_size=20_000, kind=kind) for kind in ("cnn", "bert")]
    cnn, bert = epochs_left(model, *new)
    assert cnn > bert + 5


def test_its_90_percent_interval_covers_90_percent_after_tempering() -> None:
    """150 jobs taught, 5 epochs each of 150 others; lengths scatter by 40 %."""
    model = taught(150, seed=3)
    rng = np.random.default_rng(77)
    hits = []
    for i in range(150):
        kind, mean = (("cnn", 40.0), ("bert", 12.0))[i % 2]
        *job, end = epochs_of_job(rng, kind=kind, mean=mean)
        some = [job[k] for k in np.linspace(0, len(job) - 1, 5).astype(int)]
        alpha, beta = model.predict(some)
        for f, a, b in zip(some, alpha, beta, strict=True):
            _, low, high = model.forecast(f, a, b)
            hits.append(low <= end.samples - f.samples <= high)
    assert 0.85 <= float(np.mean(hits)) <= 0.95


@given(st.lists(any_features, min_size=1, max_size=6), st.booleans())
def test_progress_is_never_predicted_above_one(jobs: list[Features], experienced: bool) -> None:
    model = trained() if experienced else ProgressModel()
    alpha, beta = model.predict(jobs)
    assert np.isfinite(alpha).all()
    assert np.isfinite(beta).all()
    assert (alpha > 0).all()
    assert (beta > 0).all()
    rho = model.quantiles(alpha, beta, 16)
    assert rho.shape == (16, len(jobs))
    assert (rho >= 0.02).all()
    assert (rho <= 0.999).all()
    assert (model.remaining(jobs, rho) > 0).all()
    for f, a, b in zip(jobs, alpha, beta, strict=True):
        middle, low, high = model.forecast(f, a, b)
        assert 0 <= low <= middle <= high < float("inf")


@given(st.lists(any_features, max_size=4))
@settings(max_examples=30)
def test_jobs_are_predicted_one_by_one(jobs: list[Features]) -> None:
    together = trained().predict(jobs)
    for i, job in enumerate(jobs):
        alone = trained().predict([job])
        np.testing.assert_allclose([together[0][i], together[1][i]], np.ravel(alone), rtol=1e-9)


def test_a_job_that_claims_an_absurd_number_of_epochs_is_predicted() -> None:
    """Of Be(α, β) with parameters of 1e15 there are no quantiles: all jobs would wait for NaN."""
    model = ProgressModel()
    absurd = replace(NEW, dataset_size=1, samples=2.0**53, usual_epochs=1e20)
    alpha, beta = model.predict([absurd, NEW])
    rho = model.quantiles(alpha, beta, 16)
    assert np.isfinite(rho).all()
    assert np.isfinite(model.remaining([absurd, NEW], rho)).all()
    assert np.isfinite(model.forecast(absurd, float(alpha[0]), float(beta[0]))).all()
    model.record_epoch(JobId("absurd"), absurd)
    assert model.finished(JobId("absurd"), completed=True) == ("", MOST_EPOCHS)


def test_a_new_job_has_work_left() -> None:
    model = ProgressModel()
    assert model.remaining([NEW], np.array([[0.02]])) == pytest.approx(49 * 1000)  # an epoch counts


def test_the_further_a_job_is_the_less_it_has_left() -> None:
    model = taught(60)
    rng = np.random.default_rng(8)
    left = []
    for _ in range(40):
        job = epochs_of_job(rng)
        left.append(epochs_left(model, *(job[int(p * len(job))] for p in (0, 0.25, 0.5, 0.75))))
    means = np.mean(left, axis=0)
    assert (np.diff(means) < 0).all()


def test_without_any_finished_job_the_declared_epochs_count_or_30_or_twice_those_done() -> None:
    model = ProgressModel()
    declared = replace(NEW, declared_epochs=100, samples=40_000.0)
    late = replace(NEW, samples=50_000.0)
    assert epochs_left(model, NEW, declared, late) == pytest.approx([30, 60, 50])


def test_finished_jobs_take_over_from_the_cold_start() -> None:
    """Jobs of 100 epochs: 30 are expected at first; of their kind at once about what the first
    one took, of a kind never seen more and more."""
    rng = np.random.default_rng(0)
    model = ProgressModel()
    expected = []
    for i in range(31):
        if i in (0, 1, 5, 30):
            new = [replace(NEW, dataset_size=20_000, kind=kind) for kind in ("cnn", "other")]
            expected.append(epochs_left(model, *new))
        teach(model, f"j{i}", epochs_of_job(rng, mean=100.0, scatter=0.1))
    of_its_kind, of_another = zip(*expected, strict=True)
    assert of_its_kind[0] == of_another[0] == 30.0
    assert all(75 < epochs < 130 for epochs in of_its_kind[1:])
    assert 30 < of_another[1] < of_its_kind[1]
    assert 45 < of_another[-1] < 150


def test_remaining_work_is_the_mean_of_longer_jobs_or_a_tenth_beyond_them() -> None:
    lengths = KindLengths()
    assert lengths.left("cnn", 3.0) is None
    for epochs in (10.0, 20.0, 40.0):
        lengths.learn("cnn", epochs)
    assert lengths.left("cnn", 0.0) == pytest.approx(70 / 3)
    assert lengths.left("cnn", 15.0) == pytest.approx(15.0)  # of those that got so far
    assert lengths.left("cnn", 50.0) == pytest.approx(5.0)
    assert lengths.left("bert", 5.0) is None


def test_the_furthest_running_job_sets_the_estimate_of_a_kind_without_completed_jobs() -> None:
    """Else long jobs of a kind would overtake one another by turns."""
    model = ProgressModel()
    for name, epochs in (("a", 40), ("b", 10)):
        at = replace(NEW, samples=1000.0 * epochs, kind="cnn")
        model.record_epoch(JobId(name), at)
        assert epochs_left(model, at) == pytest.approx([80 - epochs])


def test_an_estimate_with_larger_errors_has_less_weight() -> None:
    weights = EstimateWeights()
    estimates = np.array([[30.0], [30.0], [100.0]])
    before = float(weights.combine(estimates)[0])
    assert 60 < before < 100  # a kind is believed from the first
    for _ in range(10):
        weights.record_errors(np.zeros(1), estimates, np.array([30.0]))
    assert float(weights.combine(estimates)[0]) < 35.0
    missing = np.array([[30.0], [50.0], [np.nan]])
    assert 30.0 < float(weights.combine(missing)[0]) < 50.0


def test_jobs_without_accuracy_or_loss_teach_and_are_predicted() -> None:
    rng = np.random.default_rng(1)
    model = ProgressModel()
    for i in range(30):
        job = epochs_of_job(rng)
        if i % 3 == 1:
            job = [replace(f, accuracy=None) for f in job]
        if i % 3 == 2:
            job = [replace(f, first_loss=None, loss=None) for f in job]
        teach(model, f"j{i}", job)
    job = epochs_of_job(rng, scatter=0.0)
    for missing in ({"accuracy": None}, {"loss": None}, {"accuracy": None, "first_loss": None}):
        early, late = (replace(job[i], **missing) for i in (3, 33))  # type: ignore[arg-type]
        left = epochs_left(model, early, late)
        assert 15 < left[0] < 60
        assert left[1] < left[0]


def test_predictions_work_without_any_accuracy_or_loss() -> None:
    rng = np.random.default_rng(1)
    model = ProgressModel()
    for i in range(20):
        job = [replace(f, accuracy=None, loss=None, first_loss=None) for f in epochs_of_job(rng)]
        teach(model, f"j{i}", job)
    assert 15 < epochs_left(model, replace(NEW, dataset_size=20_000, kind="cnn"))[0] < 60


def test_improvement_is_0_when_unknown() -> None:
    known = replace(NEW, first_loss=4.0, loss=1.0)
    assert known.improvement == 0.75
    for unknown in ({"loss": None}, {"first_loss": None}, {"first_loss": 0.0}):
        assert replace(known, **unknown).improvement == 0.0


class Watched(Fifo):
    """First come, first served, and what a policy could have learned meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.described: list[JobView] = []
        self.log: list[tuple[JobId, Features | None]] = []  # None: it has completed

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, JobDescribed):
            self.described.append(view.job(event.job))
        elif isinstance(event, EpochFinished):
            self.log.append((event.job, features_of(view.job(event.job))))
        elif isinstance(event, JobEnded):
            assert event.reason.completed
            self.log.append((event.job, None))


def test_features_come_from_a_view_once_the_script_has_joined() -> None:
    state = State(Cluster.of(1))
    job = Job(id=JobId("a"), submitted_at=0.0)
    apply(state, JobSubmitted(0.0, job))
    assert features_of(state.view().job(job.id)) is None

    policy = Watched()
    Simulator(generate(jobs=1, seed=0, gap=0.0), Cluster.of(4), policy).run()
    first, effective = (features_of(policy.described[0], samples) for samples in (None, 5.0))
    last = policy.log[-2][1]
    assert first is not None
    assert effective is not None
    assert last is not None
    assert (first.samples, first.loss, first.improvement) == (0, None, 0.0)
    assert effective.samples == 5.0
    assert last.epochs == len(policy.log) - 1
    assert 0 < last.improvement < 1


def test_it_beats_the_cold_start_on_the_simulated_paper_workload() -> None:
    """90 jobs under fifo on 64 GPUs; the last third by submission, 8 epochs of each.

    Median absolute percentage error of the epochs left: 0.33, the cold start's 1.67.
    """
    policy = Watched()
    Simulator(generate(jobs=90, seed=1, gap=30.0), Cluster.of(64), policy).run()
    whole = {job: f.epochs for job, f in policy.log if f is not None}
    at = {
        job: set(np.linspace(1, whole[job] - 1, 8).round().astype(int))
        for job in sorted(whole)[60:]
    }
    model = ProgressModel()
    errors, cold_errors, hits = [], [], []
    for job, features in policy.log:
        if features is None:
            model.finished(job, completed=True)
            continue
        model.record_epoch(job, features)
        if round(features.epochs) not in at.get(job, ()):
            continue
        left = whole[job] - features.epochs
        alpha, beta = model.predict([features])
        ends = model.forecast(features, alpha[0], beta[0])
        middle, low, high = (samples / features.dataset_size for samples in ends)
        errors.append(abs(middle - left) / left)
        cold_errors.append(abs(epochs_left(ProgressModel(), features)[0] - left) / left)
        hits.append(low <= left <= high)
    assert np.median(errors) < 0.45
    assert np.median(errors) < 0.5 * np.median(cold_errors)
    assert np.mean(hits) > 0.8
