"""Shortest job first: the order equals brute force, and predictions come from completed jobs."""

from __future__ import annotations

from itertools import permutations

import pytest

from ones.core import EndReason, Event, Job, JobId
from ones.core import events as ev
from ones.core.view import JobView
from ones.errors import InvalidSettingError
from ones.models.oracle import RemainingWork
from ones.policies import create
from tests.policies.immediate_engine import ImmediateEngine


def with_lengths(lengths: dict[str, float], gpus: int = 1) -> ImmediateEngine:
    def oracle(job: JobView, gpus: int, batch: int) -> RemainingWork:
        return RemainingWork(1.0, lengths[job.id])

    return ImmediateEngine(create("sjf", knowledge="oracle", oracle=oracle), gpus)


@pytest.mark.parametrize("order", list(permutations("abcd"))[::5])
def test_on_one_gpu_the_order_has_the_least_mean_completion_time(order: tuple[str, ...]) -> None:
    """All orders are tried: that of the policy is the best, whatever the order of submission."""
    lengths = {"first": 1.0, "a": 40.0, "b": 10.0, "c": 30.0, "d": 20.0}
    world = with_lengths(lengths)
    world.submit("first")
    for name in order:
        world.submit(name)
    started: list[str] = []
    while world.running:
        (job,) = world.running
        started.append(job)
        world.end(job)

    def total(jobs: tuple[str, ...]) -> float:
        return sum(sum(lengths[j] for j in jobs[: i + 1]) for i in range(len(jobs)))

    best = min(permutations("abcd"), key=total)
    assert started == ["first", *best]
    assert world.preempted == []


def submit(world: ImmediateEngine, name: str, kind: str) -> None:
    job = Job(id=JobId(name), submitted_at=world.now, kind=kind, requested_batch=64)
    world.tell(ev.JobSubmitted(world.now, job))


def train(world: ImmediateEngine, name: str, seconds: float) -> None:
    """The job runs one epoch of this time and ends."""
    world.until(world.now + seconds)
    job = JobId(name)
    generation = world.scheduler.state.records[job].generation
    described = ev.JobDescribed(
        at=world.now, job=job, generation=generation, dataset_size=100, base_batch=64
    )
    epoch = ev.EpochFinished(
        at=world.now, job=job, generation=generation, epoch=1, samples=100, steps=2
    )
    events: list[Event] = [described, epoch]
    for event in events:
        world.tell(event)
    world.end(name)


def test_a_kind_that_was_short_goes_before_one_that_was_long() -> None:
    world = ImmediateEngine(create("sjf"), 1)
    submit(world, "l0", "long")
    train(world, "l0", 500.0)
    submit(world, "s0", "short")
    train(world, "s0", 50.0)
    submit(world, "l1", "long")
    submit(world, "l2", "long")
    submit(world, "s1", "short")
    submit(world, "unknown", "new")  # the mean of all: between the two
    train(world, "l1", 500.0)
    order = []
    while world.running:
        order += world.running
        world.end(world.running[0])
    assert order == ["s1", "unknown", "l2"]


def test_before_any_job_has_completed_the_order_is_that_of_submission() -> None:
    world = ImmediateEngine(create("sjf"), 1)
    for name in ("a", "b", "c"):
        submit(world, name, name)
    world.tell(ev.JobEnded(world.now, JobId("a"), EndReason.FAILED, "it died"))
    assert world.running == ["b"]


def test_an_oracle_is_needed_for_true_lengths() -> None:
    with pytest.raises(InvalidSettingError, match="needs an oracle"):
        create("sjf", knowledge="oracle")
