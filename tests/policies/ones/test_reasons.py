"""The words of `ones why`: what is known is told in figures, what is not is told as that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs

from ones.core import Allocation, JobView, View
from ones.core.job import Configuration, JobId, StepTime
from ones.policies.ones.choices import Knowledge, Standing
from ones.policies.ones.question import Question, ask
from ones.policies.ones.reasons import Reasons
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.jobs import seen

STAYS = Standing(new=False, may_grow=True, may_shrink=True, may_stop=True, least_batch=64)


def question_of(view: View, *jobs: JobView) -> Question:
    """The first has 64,000 samples to go, the next twice as many, ..."""
    settings = OnesSettings()
    known = Knowledge.none(settings)
    for job in jobs:
        known.speeds.learn(job)
    work = np.tile(64_000.0 * np.arange(1, len(jobs) + 1), (4, 1))
    question = ask(view, list(jobs), {job.id: STAYS for job in jobs}, work, known, settings)
    assert question is not None
    return question


def measured(job: JobView) -> JobView:
    return replace(job, profile={Configuration(1, 1, 64, 1): StepTime(0.1, 20)})


def test_what_nobody_has_measured_is_not_told_in_seconds() -> None:
    view, job = seen()
    assert "its length is not known yet, nobody else for 4 GPUs" in Reasons(
        question_of(view, job), 0
    ).waits(0)
    told = Reasons(question_of(view, measured(job)), 0).waits(0)
    assert "about 100 s left on one GPU, nobody else for 4 GPUs" in told


def test_a_change_of_the_batch_is_told_with_what_that_costs() -> None:
    """Not with what other GPUs would cost."""
    view, job = seen()
    job = measured(job)
    assert job.wanted is not None
    other = Allocation.even(job.wanted.gpus, 128, 256)
    assert "s of standing still" not in Reasons(question_of(view, job), 0.0).changed(0, other)
    assert "for 3 s of standing still" in Reasons(question_of(view, job), 3.0).changed(0, other)


def test_who_waits_though_nobody_comes_first_is_told_why() -> None:
    view, job = seen()
    short = measured(job)
    long = replace(short, job=structs.replace(job.job, id=JobId("long")), number=short.number + 1)
    reasons = Reasons(question_of(view, short, long), 0)
    first, second = (reasons.waits(i) for i in (0, 1))
    assert first == (
        "waits, to make room would cost those who run more than it gains:"
        " about 100 s left on one GPU, place 1 of 2 in line for 5 GPUs"
    )
    assert second == (
        "waits, GPUs are worth more to others:"
        " about 3 min left on one GPU, place 2 of 2 in line for 5 GPUs"
    )


def test_who_needs_more_than_can_be_had_is_told_that() -> None:
    view, job = seen()
    wide = replace(
        measured(job), job=structs.replace(job.job, min_gpus=5, max_gpus=None), wanted=None
    )
    told = Reasons(question_of(view, wide), 0).waits(0)
    assert told.startswith("waits, it needs 5 GPUs and 3 can be had")
