"""Sizes that lead to a bad placement are refined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given

from ones.core import Allocation, Gpu, JobView, View
from ones.core.cluster import Cluster
from ones.core.job import Configuration, Description, JobId, StepTime
from ones.policies.ones.place.placement_score import PlacementScore, place_jobs
from ones.policies.ones.place.placing import Places, nodes_of
from ones.policies.ones.place.size_refinement import refine_sizes
from ones.policies.ones.predict.knowledge import JobStatus, Knowledge
from ones.policies.ones.predict.speeds import Speeds
from ones.policies.ones.score.problem import optimum
from ones.policies.ones.score.problem_builder import PosedProblem, build_problem
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.test_placing import PER_NODE, Held, check, moments, view_of

SETTINGS = OnesSettings()
BASE = 64
STAYS = JobStatus(smallest_batch=0, most_gpus=2, since_start=0.0)  # not preempted
MOVES = JobStatus(smallest_batch=0)


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


def posed_problem(
    view: View, jobs: list[JobView], statuses: dict[JobId, JobStatus]
) -> tuple[PosedProblem, Speeds]:
    known = Knowledge.none()
    work = np.full((4, len(jobs)), 1e6)
    posed = build_problem(view, jobs, statuses, work, known, SETTINGS)
    assert posed is not None
    return posed, known.speeds


def places_of(view: View, posed: PosedProblem, speeds: Speeds, *, again: bool) -> Places:
    return refine_sizes(
        view,
        posed,
        [posed.round_counts(optimum(posed.problem))],
        speeds,
        again=again,
    )


def crowded(between_nodes: float, *, again: bool) -> tuple[Gpu, ...]:
    """Returns the GPUs of `a`, which holds a GPU of the first of two nodes. One more GPU is free
    there, and two on the second node; the other jobs keep theirs."""
    a, b, c = JobId("a"), JobId("b"), JobId("c")
    first, second = Cluster.of(8, PER_NODE).nodes
    held: Held = {
        a: (Gpu(first, 0),),
        b: (Gpu(first, 2), Gpu(first, 3)),
        c: (Gpu(second, 2), Gpu(second, 3)),
    }
    view = view_of(held, 2)
    jobs = jobs_of(view, between_nodes)
    posed, speeds = posed_problem(view, jobs, {a: MOVES, b: STAYS, c: STAYS})
    places = places_of(view, posed, speeds, again=again)
    assert (places[b], places[c]) == (held[b], held[c])
    return places[a]


def test_a_job_gets_two_gpus_of_one_node_if_four_of_two_nodes_are_slower() -> None:
    assert nodes_of(crowded(1.0, again=False)) == 2
    assert nodes_of(crowded(1.0, again=True)) == 1


def test_a_job_gets_four_gpus_of_two_nodes_if_the_network_is_fast() -> None:
    assert len(crowded(0.001, again=True)) == 4


def test_the_division_with_the_best_placement_is_chosen() -> None:
    """Two jobs on two nodes, the second job on both: other candidates have better placements."""
    a, b = JobId("a"), JobId("b")
    first, second = Cluster.of(8, PER_NODE).nodes
    held: Held = {
        a: tuple(Gpu(first, index) for index in range(3)),
        b: (Gpu(first, 3), *(Gpu(second, index) for index in range(3))),
    }
    view = view_of(held, 2)
    posed, speeds = posed_problem(view, jobs_of(view, 1.0), {a: MOVES, b: MOVES})
    score = PlacementScore(view, posed, speeds)

    candidates = [np.array(counts, np.int32) for counts in ([3, 4], [2, 3], [4, 4])]
    places = refine_sizes(view, posed, candidates, speeds, again=True)
    alone = [
        score.value(place_jobs(view, posed, {a: int(counts[0]), b: int(counts[1])}, score))
        for counts in candidates
    ]
    assert alone[0] < max(alone)
    assert score.value(places) >= max(alone)


@given(moments())
def test_refined_sizes_are_valid(
    moment: tuple[int, Held, dict[JobId, int]],
) -> None:
    nodes, held, _ = moment
    view = view_of(held, nodes)
    jobs = jobs_of(view, 0.5)
    posed, speeds = posed_problem(view, jobs, dict.fromkeys(held, MOVES))
    places = places_of(view, posed, speeds, again=True)
    check(places, held, {job: len(gpus) for job, gpus in places.items()}, nodes)
    for i, job in enumerate(posed.jobs):
        size = len(places.get(job.id, ()))
        assert size == 0 or posed.problem.least[i] <= size <= posed.problem.most[i]
