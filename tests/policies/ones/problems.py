"""Problems and populations for the tests of the search."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ones.models.allocation import next_sizes
from ones.policies.ones.place.genome import Rows, allocate_rows, counts_of
from ones.policies.ones.place.operators import Tables, tables
from ones.policies.ones.score.problem import Ints, Problem


@st.composite
def problems(
    draw: st.DrawFn, most_jobs: int = 12, most_gpus: int = 80, use_all: bool | None = None
) -> Problem:
    """Any mix: jobs that may not run, that need several GPUs, or hold too many.

    Costs are above 0 if all GPUs are to be used, of either sign if only as far as it pays;
    `use_all` decides which, or either comes.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    jobs = draw(st.integers(1, most_jobs))
    gpus = draw(st.integers(1, most_gpus))
    largest = draw(st.integers(1, 9))
    least = rng.integers(1, draw(st.integers(1, largest)) + 1, jobs, np.int32)
    most = np.maximum(least, rng.integers(1, largest + 1, jobs, np.int32))
    most[rng.random(jobs) < draw(st.sampled_from([0.0, 0.0, 0.3]))] = 0
    # few distinct numbers, so that ties are met
    steps = draw(st.sampled_from([3, 1000]))
    cost = rng.integers(0, steps, (jobs, largest + 1)) / 7
    cost[:, 0] *= draw(st.sampled_from([0, 1]))
    fill = draw(st.booleans()) if use_all is None else use_all
    if not fill:
        cost[:, 1:] -= steps // 2 / 7
    return Problem(
        gpus=gpus,
        keys=rng.permutation(1000)[:jobs],
        least=least,
        most=most,
        held=np.where(rng.random(jobs) < 0.5, 0, rng.integers(0, largest + 1, jobs)),
        processed=rng.integers(0, 5, jobs).astype(float),
        cost=cost,
        work=rng.integers(1, steps, (draw(st.sampled_from([1, 3])), jobs)) / 11,
        use_all=fill,
    )


def simple(gpus: int, most: list[int], **changes: object) -> Problem:
    """Jobs of one unit of work each, that cost a GPU-second whatever they get."""
    jobs = len(most)
    width = max(most) + 1
    cost = np.ones((jobs, width))
    cost[:, 0] = 0
    values: dict[str, object] = {
        "keys": np.arange(jobs), "least": np.ones(jobs), "most": np.array(most),
        "held": np.zeros(jobs), "processed": np.zeros(jobs),
        "cost": cost, "work": np.ones((1, jobs)),
    }  # fmt: skip
    return Problem(gpus=gpus, **(values | changes))  # type: ignore[arg-type]


def tables_of(problem: Problem, *, slope_share: float = 0.5) -> Tables:
    return tables(problem, next_sizes=next_sizes, slope_share=slope_share)


def seeds(rng: np.random.Generator, n: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return rng.integers(0, 2**64, n, np.uint64)


def empty_rows(problem: Problem, rows: int) -> Rows:
    return allocate_rows(rows, min(len(problem.keys), problem.gpus))


def all_counts(rows: Rows, problem: Problem, n: int) -> list[Ints]:
    return [counts_of(rows, row, len(problem.keys)) for row in range(n)]


def check(counts: Ints, problem: Problem) -> None:
    """Within least and most, or none; every GPU one worker."""
    assert counts.sum() <= problem.gpus
    assert ((counts == 0) | (counts >= problem.least)).all()
    assert (counts <= problem.most).all()


def check_rows(rows: Rows, problem: Problem, n: int) -> None:
    for row in range(n):
        runs = rows.length[row]
        jobs = rows.jobs[row, :runs]
        assert len(set(jobs.tolist())) == runs  # each job is packed: in one run
        assert (rows.counts[row, :runs] > 0).all()
        check(counts_of(rows, row, len(problem.keys)), problem)


@st.composite
def flow_problems(draw: st.DrawFn, most_jobs: int = 10, most_gpus: int = 40) -> Problem:
    """As the score of flow time asks: what speed is worth, less what a change loses."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    jobs = draw(st.integers(1, most_jobs))
    gpus = draw(st.integers(1, most_gpus))
    largest = draw(st.integers(1, 12))
    most = rng.integers(1, largest + 1, jobs, np.int32)
    held = np.where(rng.random(jobs) < 0.5, 0, rng.integers(0, most + 1))
    while held.sum() > gpus:
        held[np.argmax(held)] -= 1
    speedup = np.maximum.accumulate(
        np.arange(1, largest + 1) ** rng.uniform(0.0, 1.0, (jobs, 1)), axis=1
    )
    cost = np.zeros((jobs, largest + 1))
    cost[:, 1:] = -speedup
    kept = rng.uniform(0.5, 1.0, jobs)  # part of the value that a change leaves
    for i in np.flatnonzero(held):
        stays = cost[i, held[i]]
        cost[i, 1:] *= kept[i]
        cost[i, 0] = -0.1 * stays
        cost[i, held[i]] = stays
    return Problem(
        gpus=gpus,
        keys=np.arange(jobs),
        least=np.ones(jobs, np.int32),
        most=most,
        held=held.astype(np.int32),
        processed=rng.random(jobs),
        cost=cost,
        work=rng.lognormal(0, 1, (draw(st.sampled_from([1, 4])), jobs)),
        use_all=False,
    )
