"""The learned rival: its network, what it sees, what it may do, and how it goes on learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ones.core import Cluster, Decision, Job, JobId, Scheduler, View
from ones.core import events as ev
from ones.core.job import Configuration, Generation
from ones.core.plan import Start, diff
from ones.errors import InvalidSettingError
from ones.policies import create
from ones.policies.drl import online_learner
from ones.policies.drl.kind_table import KindTable
from ones.policies.drl.network import (
    FEATURES,
    SIZES,
    WEIGHTS,
    Batch,
    Floats,
    Observation,
    gradient,
    initial_weights,
    log_probabilities,
    scores,
)
from ones.policies.drl.online_learner import OnlineLearner
from ones.policies.drl.policy import Drl
from ones.policies.drl.trained_weights import TrainedWeights, parse, shipped
from ones.sim import Simulator
from ones.workload import generate


def observations(n: int, seed: int = 1) -> list[Observation]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        jobs = int(rng.integers(1, 6))
        valid = rng.random(jobs * len(SIZES) + 1) < 0.5
        valid[0] = True
        found.append(Observation(rng.normal(size=(jobs, FEATURES)), valid))
    return found


def random_weights(seed: int = 2) -> Floats:
    return 3.0 * initial_weights(np.random.default_rng(seed))


# the network


def test_the_gradient_is_that_of_finite_differences() -> None:
    told = observations(7)
    batch = Batch.of(told)
    rng = np.random.default_rng(3)
    chosen = batch.choices(told, [int(rng.choice(np.flatnonzero(x.valid))) for x in told])
    worth, weights = rng.normal(size=len(told)), random_weights()
    _, slope = gradient(weights, batch, chosen, worth, entropy=0.3)
    for i in rng.choice(WEIGHTS, 60, replace=False).tolist():
        step = np.zeros(WEIGHTS)
        step[i] = 1e-5
        up, _ = gradient(weights + step, batch, chosen, worth, entropy=0.3)
        down, _ = gradient(weights - step, batch, chosen, worth, entropy=0.3)
        assert slope[i] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-8)


def test_chances_add_up_and_what_is_not_open_has_none() -> None:
    told = observations(20)
    batch = Batch.of(told)
    chances = np.exp(log_probabilities(random_weights(), batch))
    assert chances.sum(axis=1) == pytest.approx(1.0)
    assert chances[~batch.valid].max() == 0.0


def test_padding_changes_nothing_and_the_order_of_jobs_means_nothing() -> None:
    told, weights = observations(20), random_weights()
    padded = log_probabilities(weights, Batch.of(told))
    for row, observation in zip(padded, told, strict=True):
        alone = scores(weights, observation)
        jobs = len(observation.features)
        np.testing.assert_allclose(row[: jobs * len(SIZES)], alone[:-1])
        assert row[-1] == pytest.approx(alone[-1])
        order = np.random.default_rng(1).permutation(jobs)
        valid = observation.valid[:-1].reshape(jobs, -1)[order].ravel()
        turned = scores(
            weights,
            Observation(observation.features[order], np.append(valid, observation.valid[-1])),
        )
        np.testing.assert_allclose(turned[:-1], alone[:-1].reshape(jobs, -1)[order].ravel())


# what it may do


class Guarded(Drl):
    """Holds every decision to the limits of the design."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.moves = self.idle = self.shrunk = 0

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        changes = diff(view.schedule, decision.schedule)
        assert len(changes) <= 1, "more than one job in a decision"
        for change in changes:
            assert change.after is not None, "a job was preempted"
            assert change.after.batch == view.job(change.job).job.requested_batch
            self.moves += 1
            self.shrunk += change.before is not None and change.after.n_gpus < change.before.n_gpus
        if not changes:
            self.idle += 1
            fits = [job for job in view.waiting if job.job.min_gpus <= len(view.free)]
            assert not fits, "a job could have started"
        return decision


@pytest.mark.parametrize("mechanism", ["checkpoint", "elastic"])
@pytest.mark.parametrize("sampled", [False, True])
def test_one_job_changes_at_a_time_none_is_preempted_batches_are_fixed(
    mechanism: str, sampled: bool
) -> None:
    policy = Guarded(seed=1, sampled=sampled)
    trace = generate(jobs=30, seed=9, gap=8.0)
    result = Simulator(trace, Cluster.of(16), policy, mechanism=mechanism, seed=1).run()
    assert len(result.state.ended) == 30
    assert all(outcome.preemptions == 0 for outcome in result.state.ended.values())
    assert policy.moves > 30
    assert policy.idle > 0
    if sampled:
        assert policy.shrunk > 0  # so that the limit on preemption was put to the test


def started(scheduler: Scheduler, job: Job) -> int:
    plan = scheduler.handle(ev.JobSubmitted(job.submitted_at, job))
    (start,) = (action for action in plan.actions if isinstance(action, Start))
    return start.allocation.n_gpus


def test_an_unknown_job_can_only_have_its_requested_size() -> None:
    scheduler = Scheduler(Cluster.of(64), create("drl"))
    assert started(scheduler, Job(id=JobId("a"), submitted_at=0.0, requested_gpus=3)) == 3
    job = Job(id=JobId("b"), submitted_at=1.0, kind="k", requested_gpus=40, requested_batch=64)
    assert started(scheduler, job) == 40


def test_sizes_stay_within_what_a_job_may_have() -> None:
    kinds = {"k": {"limit": None, "totals": [], "profile": [[1, 1, 64, 1, 1.0, 20]]}}
    for seed in range(5):
        policy = Drl(seed=seed, sampled=True)
        policy._kind_table = KindTable(kinds)
        scheduler = Scheduler(Cluster.of(64), policy)
        job = Job(
            id=JobId("a"),
            submitted_at=0.0,
            kind="k",
            min_gpus=3,
            max_gpus=6,
            requested_batch=64,
        )
        assert 3 <= started(scheduler, job) <= 6
        small = Job(id=JobId("b"), submitted_at=1.0, kind="k", requested_batch=2)
        assert started(scheduler, small) <= 2


def test_it_wakes_every_tick_while_there_is_a_job() -> None:
    scheduler = Scheduler(Cluster.of(4), create("drl", tick=7.0))
    scheduler.handle(ev.JobSubmitted(1.0, Job(id=JobId("a"), submitted_at=1.0)))
    assert scheduler.wake_at == 8.0
    scheduler.handle(ev.CancelRequested(2.0, JobId("a")))
    assert scheduler.wake_at in (9.0, float("inf"))


def test_its_notes_say_why() -> None:
    scheduler = Scheduler(Cluster.of(1), create("drl"))
    for name in ("a", "b"):
        scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId(name), submitted_at=0.0)))
    notes = [scheduler.state.records[JobId(name)].note for name in ("a", "b")]
    assert notes[0] == "Started on 1 GPU: chosen by the learned policy."
    assert notes[1] == "Waiting for 1 GPU: no GPU is free. ⟨running:⟩"


# what it knows of kinds


def test_remaining_work_is_estimated_from_longer_finished_jobs() -> None:
    kinds = KindTable()
    for batch, samples in ((64, 100), (64, 200), (64, 300), (128, 9000)):
        kinds.learn_length("k", batch, samples)
    scheduler = Scheduler(Cluster.of(4), create("fifo"))
    job = Job(id=JobId("a"), submitted_at=0.0, kind="k", requested_batch=64)
    scheduler.handle(ev.JobSubmitted(0.0, job))
    view = scheduler.state.view().job(JobId("a"))
    assert kinds.samples_left(view, 64) == pytest.approx(200.0)
    assert kinds.samples_left(view, 128) == pytest.approx(2400.0)  # too few of its own
    assert kinds.samples_left(view, 64) != kinds.samples_left(view, 128)


def test_a_measured_step_counts_more_than_the_fit() -> None:
    kinds = KindTable()
    for gpus, seconds in ((1, 1.0), (2, 0.6), (4, 0.1)):
        kinds.learn_speed("k", Configuration(gpus, 1, 64), seconds, 20)
    scheduler = Scheduler(Cluster.of(4), create("fifo"))
    job = Job(id=JobId("a"), submitted_at=0.0, kind="k", requested_batch=64)
    scheduler.handle(ev.JobSubmitted(0.0, job))
    found = kinds.step_seconds(scheduler.state.view().job(JobId("a")), 64, 4)
    assert found[:3] == (1.0, 0.6, 0.1)
    assert len(found) == len(SIZES)
    again = KindTable(kinds.save())
    assert again.step_seconds(scheduler.state.view().job(JobId("a")), 64, 4) == found


def test_without_the_table_it_starts_with_nothing() -> None:
    job = Job(
        id=JobId("a"),
        submitted_at=0.0,
        kind="vgg16-imagenet",
        requested_gpus=8,
        requested_batch=512,
    )
    policy = Drl(known_kinds=False)
    assert policy.save()["book"] == {}
    assert started(Scheduler(Cluster.of(64), policy), job) == 8
    assert set(Drl().save()["book"]) == set(shipped().kinds) != set()


# learning while deployed


def tuned(decisions: int, burden: int) -> OnlineLearner:
    learner = OnlineLearner(random_weights(), learns=True)
    for i, observation in enumerate(observations(decisions)):
        learner.set_unfinished(10.0 * i, 5 if i < online_learner.MAX_RECORDS else burden + i % 7)
        learner.record(observation, int(np.flatnonzero(observation.valid)[-1]))
    return learner


def test_after_a_hundred_decisions_it_takes_a_small_step() -> None:
    before = random_weights()
    learner = OnlineLearner(before, learns=True)
    for i, observation in enumerate(observations(100)):
        learner.set_unfinished(20.0 * i, i % 9)
        learner.record(observation, int(np.flatnonzero(observation.valid)[0]))
        if i < 99:
            assert learner.weights is before
    change = np.abs(learner.weights - before)
    assert 0 < change.max() <= online_learner.LEARNING_RATE * 1.001


def test_when_things_get_worse_it_goes_back_to_what_was_shipped() -> None:
    good = tuned(2 * online_learner.MAX_RECORDS, 1)
    assert good.learns
    assert (good.weights != random_weights()).any()
    bad = tuned(2 * online_learner.MAX_RECORDS, 50)
    assert not bad.learns
    assert (bad.weights == random_weights()).all()


def test_what_was_learned_survives_being_saved() -> None:
    learner = tuned(online_learner.MAX_RECORDS + 130, 3)
    twin = OnlineLearner(random_weights(), learns=True)
    twin.load(learner.save())
    for i, observation in enumerate(
        observations(170, seed=8), start=online_learner.MAX_RECORDS + 130
    ):
        for one in (learner, twin):
            one.set_unfinished(10.0 * i, i % 4)
            one.record(observation, int(np.flatnonzero(observation.valid)[0]))
    assert (twin.weights == learner.weights).all()
    assert twin.save() == learner.save()


def test_without_online_learning_it_records_nothing() -> None:
    policy = Drl(online=False)
    Simulator(generate(jobs=5, seed=1, gap=5.0), Cluster.of(8), policy).run()
    assert policy.save()["tuner"]["memories"] == []
    assert policy.save()["tuner"]["weights"] is None


# the file


def test_the_shipped_weights_say_how_they_were_made_and_on_calibration_seeds_only() -> None:
    told = shipped().training
    assert told["command"].startswith("ones drl train")
    assert told["curve"]
    assert not told.get("interrupted")
    for span in told["trace_seeds"].values():
        first, last = map(int, span.split("-"))
        assert 1 <= first <= last < 100
    assert told["validation"]["checkpoint"] < told["validation"]["fifo"]


def test_the_shipped_weights_beat_first_come_first_served() -> None:
    """On a calibration trace that chose nothing: a rival at less than its strength is a defect."""
    trace = generate(jobs=50, seed=61, gap=12.0)
    means = []
    for name in ("drl", "fifo"):
        result = Simulator(trace, Cluster.of(64), create(name), seed=61).run()
        means.append(np.mean([job.completion_seconds for job in result.state.ended.values()]))
    assert means[0] < 0.9 * means[1]


def test_a_file_of_ones_own_is_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(
        TrainedWeights(np.zeros(WEIGHTS), {"k": {"limit": 1, "totals": [], "profile": []}}).text()
    )
    policy = create("drl", weights=str(path))
    assert isinstance(policy, Drl)
    assert set(policy.save()["book"]) == {"k"}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tick": 0.0}, "tick 0.0 is not at least 0.1"),
        ({"tick": float("nan")}, "tick nan is not at least 0.1"),
        ({"weights": "/nowhere.json"}, "policy drl: /nowhere.json: cannot be read: No such file"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSettingError, match=problem):
        create("drl", **settings)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not the weights of a drl policy"),
        ("[1]", "not the weights of a drl policy"),
        ('{"format": 1}', "not the weights of a drl policy"),
        (
            TrainedWeights(np.zeros(WEIGHTS), {}).text().replace("0.0", "NaN", 1),
            "of another network",
        ),
        (TrainedWeights(np.zeros(3), {}).text(), "of another network"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        parse(text, "mine.json")
    assert str(raised.value).startswith("mine.json: ")


def test_reports_update_the_table() -> None:
    policy = Drl(known_kinds=False)
    scheduler = Scheduler(Cluster.of(4), policy)
    job = Job(id=JobId("a"), submitted_at=0.0, kind="k", requested_batch=64)
    plan = scheduler.handle(ev.JobSubmitted(0.0, job))
    (start,) = plan.actions
    assert isinstance(start, Start)
    of = {"job": JobId("a"), "generation": Generation(plan.number)}
    scheduler.handle(ev.WorkerReady(1.0, JobId("a"), of["generation"], start.allocation.gpus[0]))  # type: ignore[arg-type]
    scheduler.handle(
        ev.JobDescribed(at=1.0, dataset_size=640, base_batch=64, max_local_batch=99, **of)  # type: ignore[arg-type]
    )
    way = Configuration(1, 1, 64)
    scheduler.handle(
        ev.ThroughputMeasured(at=2.0, configuration=way, step_seconds=0.5, steps=20, **of)  # type: ignore[arg-type]
    )
    entry = policy.save()["book"]["k"]
    assert entry["limit"] == 99
    assert entry["profile"] == [[1, 1, 64, 1, 0.5, 20]]


def test_a_job_with_a_smaller_batch_than_workers_resumes_with_a_sample_for_each() -> None:
    """Its script says a batch of 1 and its user at least 2 GPUs; then it lost all workers."""
    scheduler = Scheduler(Cluster.of(4), create("drl", seed=1))
    job = Job(id=JobId("a"), submitted_at=0.0, min_gpus=2, retries=2)
    (start,) = scheduler.handle(ev.JobSubmitted(0.0, job)).actions
    assert isinstance(start, Start)
    for gpu in start.allocation.gpus:
        scheduler.handle(ev.WorkerReady(1.0, job.id, Generation(1), gpu))
    scheduler.handle(
        ev.JobDescribed(at=2.0, job=job.id, generation=Generation(1), dataset_size=9, base_batch=1)
    )
    for gpu in start.allocation.gpus:
        scheduler.handle(ev.WorkerLost(3.0, job.id, Generation(1), gpu))
    scheduler.handle(ev.Woke(30.0))
    resumed = scheduler.state.schedule[job.id]
    assert [worker.batch for worker in resumed.workers] == [1] * resumed.n_gpus
