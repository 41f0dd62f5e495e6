"""The genome: one entry for each GPU; what holds for every candidate, whatever the operators do."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ones.policies.ones_paper.genome import IDLE, carry_over, counts
from ones.policies.ones_paper.problem import Problem
from ones.policies.ones_paper.search import PaperSearch
from tests.policies.ones_paper.problems import genomes, problem


def test_eq_2_the_gpus_of_a_job_are_its_entries() -> None:
    assert counts(genomes([0, 0, 2, IDLE], [1, 1, 1, 1]), 3).tolist() == [[2, 0, 1], [0, 4, 0]]


def test_refresh_1_the_gpus_of_completed_jobs_become_idle() -> None:
    before = genomes([0, 1, 1, 2])
    after = carry_over(before, ([10, 11, 12], [10, 12, 13]), ("abcd", "abcd"))
    assert after.tolist() == [[0, IDLE, IDLE, 1]]


def test_gpus_that_left_or_joined_the_pool_are_dropped_or_idle() -> None:
    after = carry_over(genomes([0, 1, 1]), ([1, 2], [1, 2]), ("abc", "cad"))
    assert after.tolist() == [[1, 0, IDLE]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    jobs, gpus = draw(st.integers(1, 8)), draw(st.integers(1, 20))
    least = draw(st.lists(st.integers(1, 3), min_size=jobs, max_size=jobs))
    most = [draw(st.sampled_from([0, *range(n, gpus + 1)])) for n in least]
    new = [draw(st.booleans()) and m > 0 for m in most]
    most = [min(m, n) if fresh else m for m, n, fresh in zip(most, least, new, strict=True)]
    work = draw(st.lists(st.floats(0.1, 1e6), min_size=jobs, max_size=jobs))
    return problem(gpus, most, least=least, new=new, work=work)


@given(problems(), st.integers(0, 99), st.sampled_from(["waiting-first", "gain"]))
def test_every_candidate_keeps_limits_and_is_packed_and_runs_new_jobs(
    asked: Problem, seed: int, fill: str
) -> None:
    rng = np.random.default_rng(seed)
    search = PaperSearch(4, 0.5, fill)
    members = search.first_population(asked, rng)
    for _ in range(2):
        members = search.iterate(members, np.zeros(asked.jobs, np.bool_), asked, rng)
    held = counts(members, asked.jobs)
    assert members.shape == (4, asked.gpus)
    assert (held <= asked.most).all()
    assert ((held == 0) | (held >= asked.least)).all()
    assert (held[:, asked.first] > 0).all()
    for row in members.tolist():
        runs = [job for job, _ in groupby(row)]
        assert len(runs) == len(set(runs)), "the workers of a job lie side by side"
        assert IDLE not in runs[:-1], "idle GPUs are the last ones"


@given(problems(), st.integers(0, 99))
def test_no_gpu_is_idle_that_a_job_on_one_gpu_could_use(asked: Problem, seed: int) -> None:
    asked = asked._replace(least=np.ones(asked.jobs, np.int32))
    rng = np.random.default_rng(seed)
    members = PaperSearch(4, 0.5).first_population(asked, rng)
    assert (counts(members, asked.jobs).sum(axis=1) == asked.usable).all()  # Eq. 4
