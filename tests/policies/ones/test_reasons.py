"""Reasons of the ONES policy: numbers that are known, and the jobs that have precedence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs

from ones.core import Allocation, JobView, View
from ones.core.cluster import Gpu, NodeId
from ones.core.job import Configuration, JobId, StepTime
from ones.core.reason_markers import stored_place
from ones.policies.ones.place.reasons import Reasons, rebatched
from ones.policies.ones.predict.knowledge import JobStatus, Knowledge
from ones.policies.ones.score.choices import Choices
from ones.policies.ones.score.problem_builder import PosedProblem, build_problem
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.jobs import A, seen

STAYS = JobStatus(smallest_batch=64)


def posed_problem(view: View, *jobs: JobView) -> PosedProblem:
    """The first has 64,000 samples to go, the next twice as many, ..."""
    settings = OnesSettings()
    known = Knowledge.none()
    for job in jobs:
        known.speeds.learn(job)
    work = np.tile(64_000.0 * np.arange(1, len(jobs) + 1), (4, 1))
    posed = build_problem(view, list(jobs), {job.id: STAYS for job in jobs}, work, known, settings)
    assert posed is not None
    return posed


def measured(job: JobView) -> JobView:
    return replace(job, profile={Configuration(1, 1, 64, 1): StepTime(0.1, 20)})


def test_a_job_without_measurements_is_told_so() -> None:
    view, job = seen()
    fresh = replace(job, wanted=None)
    on_one = Allocation.even(job.wanted.gpus, 64, 256) if job.wanted else None
    assert on_one is not None
    told = Reasons(view, posed_problem(view, fresh), {A: on_one.gpus}, 0).changed(0, on_one)
    assert told == "Started on 1 GPU, batch 64: its speed is not measured yet."
    told = Reasons(view, posed_problem(view, measured(fresh)), {A: on_one.gpus}, 0).changed(
        0, on_one
    )
    assert told == "Started on 1 GPU, batch 64: no other job competes for the 3 shared GPUs."


def test_a_change_of_the_batch_names_the_pause_of_that_change() -> None:
    """Not the pause of a change to other GPUs."""
    view, job = seen()
    job = measured(job)
    assert job.wanted is not None
    other = Allocation.even(job.wanted.gpus, 128, 256)
    places = {A: other.gpus}
    assert "pause" not in Reasons(view, posed_problem(view, job), places, 0.0).changed(0, other)
    told = Reasons(view, posed_problem(view, job), places, 3.0).changed(0, other)
    assert told.startswith("Batch ")
    assert "3 s pause). Stays on 1 GPU: no other job" in told


def two_jobs() -> tuple[View, JobView, JobView]:
    view, job = seen()
    short = measured(job)
    long = replace(short, job=structs.replace(job.job, id=JobId("long")), number=short.number + 1)
    return view, short, long


def test_a_waiting_job_is_told_its_position_and_the_jobs_that_have_precedence() -> None:
    view, short, long = two_jobs()
    posed = posed_problem(view, short, long)
    assert short.wanted is not None
    reasons = Reasons(view, posed, {A: short.wanted.gpus}, 0)
    assert reasons.waits(1) == (
        "Waiting for 1 GPU: shorter or older jobs have precedence. ⟨running:⟩ ⟨place:1⟩"
    )
    alone = Reasons(view, posed, {JobId("long"): short.wanted.gpus}, 0)
    assert alone.waits(0) == (
        "Waiting: preempting a running job for it would cost more time than it saves. ⟨place:1⟩"
    )


def test_a_preempted_job_is_told_which_job_has_its_gpus_and_why() -> None:
    view, short, long = two_jobs()
    assert short.wanted is not None
    started = replace(short, wanted=None)
    posed = posed_problem(view, started, long)
    told = Reasons(view, posed, {A: short.wanted.gpus}, 0).preempted(1)
    assert told.startswith("Preempted: made room for ⟨job:a⟩, which finishes sooner.")
    urgent = replace(started, priority=1.0)
    told = Reasons(view, posed_problem(view, urgent, long), {A: short.wanted.gpus}, 0).preempted(1)
    assert told.startswith("Preempted: made room for ⟨job:a⟩, which has a higher priority.")


def test_positions_beyond_the_first_are_not_stored() -> None:
    """The log must not grow with every waiting job at every decision."""
    view, job = seen()
    jobs = [
        replace(measured(job), job=structs.replace(job.job, id=JobId(f"j{i}")), number=i,
                wanted=None)
        for i in range(30)
    ]  # fmt: skip
    reasons = Reasons(view, posed_problem(view, *jobs), {}, 0)
    told = [reasons.waits(i) for i in range(30)]
    assert [stored_place(text) for text in told] == [*range(1, 21), *[None] * 10]
    assert len(set(told[20:])) == 1


def test_a_job_that_needs_more_than_is_shared_is_told_that() -> None:
    view, job = seen()
    wide = replace(
        measured(job), job=structs.replace(job.job, min_gpus=5, max_gpus=None), wanted=None
    )
    told = Reasons(view, posed_problem(view, wide), {}, 0).waits(0)
    assert told.startswith("Waiting: needs 5 GPUs at the same time, and fewer can be shared now")


def test_a_new_batch_is_explained_by_the_limit_only_at_the_limit() -> None:
    choices = Choices(np.array([1]), np.array([128]), np.array([150.0]), 100.0)
    gpus = [Gpu(NodeId("node0"), 0)]
    before, after = Allocation.even(gpus, 256), Allocation.even(gpus, 128)
    note = "Batch 256 -> 128 (1.5x faster). Stays on 1 GPU"
    assert rebatched(before, after, choices, 512) == f"{note}: the new batch has a better goodput."
    assert rebatched(before, after, choices, 128) == f"{note}: its batch limit is 128 for now."
