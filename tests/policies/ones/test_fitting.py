"""Sizes that would lie badly are chosen again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given

from ones.core import Allocation, Gpu, JobView, View
from ones.core.cluster import Cluster
from ones.core.job import Configuration, Description, JobId, StepTime
from ones.policies.ones.choices import Knowledge, Standing
from ones.policies.ones.fitting import fitted
from ones.policies.ones.placing import Places, nodes_of
from ones.policies.ones.problem import optimum
from ones.policies.ones.question import Question, ask
from ones.policies.ones.settings import OnesSettings
from ones.policies.ones.spans import Judge, placed
from ones.policies.ones.speeds import Speeds
from tests.policies.ones.test_placing import PER_NODE, Held, check, moments, view_of

SETTINGS = OnesSettings()
BASE = 64
STAYS = Standing(smallest_batch=0, most_gpus=2, since_start=0.0)  # not preempted
MOVES = Standing(smallest_batch=0)


def times(between_nodes: float) -> dict[Configuration, StepTime]:
    """Twice as fast on twice the GPUs of a node; a step between nodes takes longer."""
    found = {}
    for gpus in (1, 2, 4):
        found[Configuration(gpus, 1, BASE, 1)] = StepTime(0.4 / gpus, 20)
        if gpus > 1:
            found[Configuration(gpus, 2, BASE, 1)] = StepTime(0.4 / gpus + between_nodes, 20)
    return found


def jobs_of(view: View, between_nodes: float) -> list[JobView]:
    described = Description(dataset_size=100_000, base_batch=BASE, max_local_batch=BASE)
    jobs = []
    for job in view.jobs.values():
        held = job.wanted and Allocation.even(job.wanted.gpus, max(BASE, job.wanted.n_gpus))
        jobs.append(
            replace(
                job, description=described, wanted=held, held=held, profile=times(between_nodes)
            )
        )
    return jobs


def question_of(
    view: View, jobs: list[JobView], standings: dict[JobId, Standing]
) -> tuple[Question, Speeds]:
    known = Knowledge.none()
    work = np.full((4, len(jobs)), 1e6)
    question = ask(view, jobs, standings, work, known, SETTINGS)
    assert question is not None
    return question, known.speeds


def places_of(view: View, question: Question, speeds: Speeds, *, again: bool) -> Places:
    return fitted(
        view,
        question,
        [question.rounded(optimum(question.problem))],
        speeds,
        again=again,
    )


def crowded(between_nodes: float, *, again: bool) -> tuple[Gpu, ...]:
    """What `a` gets, which has a GPU of the first of two nodes; one more is free there, and two on
    the second. The others stay."""
    a, b, c = JobId("a"), JobId("b"), JobId("c")
    first, second = Cluster.of(8, PER_NODE).nodes
    held: Held = {
        a: (Gpu(first, 0),),
        b: (Gpu(first, 2), Gpu(first, 3)),
        c: (Gpu(second, 2), Gpu(second, 3)),
    }
    view = view_of(held, 2)
    jobs = jobs_of(view, between_nodes)
    question, speeds = question_of(view, jobs, {a: MOVES, b: STAYS, c: STAYS})
    places = places_of(view, question, speeds, again=again)
    assert (places[b], places[c]) == (held[b], held[c])
    return places[a]


def test_four_on_two_nodes_that_are_slower_than_two_on_one_are_not_taken() -> None:
    assert nodes_of(crowded(1.0, again=False)) == 2
    assert nodes_of(crowded(1.0, again=True)) == 1


def test_four_on_two_nodes_are_taken_where_the_network_is_fast() -> None:
    assert len(crowded(0.001, again=True)) == 4


def test_of_several_divisions_the_one_that_lies_best_is_taken() -> None:
    """Two jobs on two nodes, the second of them on both: others lie better."""
    a, b = JobId("a"), JobId("b")
    first, second = Cluster.of(8, PER_NODE).nodes
    held: Held = {
        a: tuple(Gpu(first, index) for index in range(3)),
        b: (Gpu(first, 3), *(Gpu(second, index) for index in range(3))),
    }
    view = view_of(held, 2)
    question, speeds = question_of(view, jobs_of(view, 1.0), {a: MOVES, b: MOVES})
    judge = Judge(view, question, speeds)

    candidates = [np.array(counts, np.int32) for counts in ([3, 4], [2, 3], [4, 4])]
    places = fitted(view, question, candidates, speeds, again=True)
    alone = [
        judge.value(placed(view, question, {a: int(counts[0]), b: int(counts[1])}, judge))
        for counts in candidates
    ]
    assert alone[0] < max(alone)
    assert judge.value(places) >= max(alone)


@given(moments())
def test_whatever_is_chosen_again_fits(moment: tuple[int, Held, dict[JobId, int]]) -> None:
    nodes, held, _ = moment
    view = view_of(held, nodes)
    jobs = jobs_of(view, 0.5)
    question, speeds = question_of(view, jobs, dict.fromkeys(held, MOVES))
    places = places_of(view, question, speeds, again=True)
    check(places, held, {job: len(gpus) for job, gpus in places.items()}, nodes)
    for i, job in enumerate(question.jobs):
        size = len(places.get(job.id, ()))
        assert size == 0 or question.problem.least[i] <= size <= question.problem.most[i]
