"""The paper's figures of the operators: their captions, on small instances of ours."""

from __future__ import annotations

import numpy as np
import pytest

from ones.core import Cluster, Generation, Job, JobId, Scheduler, View
from ones.core import events as ev
from ones.core.schedule import Schedule
from ones.lab.bench.search import reference
from ones.policies import create
from ones.policies.ones.place import kernels
from ones.policies.ones.place.deploy import deploy
from ones.policies.ones.place.genome import Rows, allocate_rows, counts_of, write
from ones.policies.ones.place.search import Operators
from ones.policies.ones.predict.knowledge import JobStatus, Knowledge
from ones.policies.ones.predict.speeds import Speeds
from ones.policies.ones.score.problem_builder import PosedProblem, build_problem
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.problems import all_counts, seeds, simple, tables_of

BOTH = (kernels, reference)


def jobs_on_gpus(rows: Rows, at: int) -> list[int]:
    """The job on each GPU, as the figures show it."""
    runs = rows.length[at]
    return np.repeat(rows.jobs[at, :runs], rows.counts[at, :runs]).tolist()


@pytest.mark.parametrize("ops", BOTH)
def test_figure_refresh_job_1_is_selected_first_then_job_2_and_the_cluster_is_full(
    ops: Operators,
) -> None:
    """Four GPUs; job 0 runs on two and may have no more. Job 1 is the cheapest, then job 2."""
    cost = np.tile([0.0, 1.0], (4, 1))
    work = np.array([[9.0, 1.0, 2.0, 3.0]])
    problem = simple(3, [1, 1, 1, 1], cost=cost, work=work)
    rows = allocate_rows(1, 4)
    write(rows, 0, np.array([1, 0, 0, 0], np.int32))
    ops.refresh(tables_of(problem, slope_share=0.0), np.ones(1, np.uint64), rows)
    assert jobs_on_gpus(rows, 0) == [0, 1, 2]


@pytest.mark.parametrize("ops", BOTH)
def test_figure_refresh_a_selected_job_grows_by_all_that_its_limit_allows(ops: Operators) -> None:
    """Waiting jobs first, the cheapest ones; then the one grows that loses least by it."""
    cost = np.tile([0.0, 1.0, 1.5, 2.5, 4.0], (3, 1))
    problem = simple(4, [4, 4, 1], cost=cost, work=np.array([[3.0, 1.0, 2.0]]))
    rows = allocate_rows(1, 3)
    ops.refresh(tables_of(problem, slope_share=0.0), np.ones(1, np.uint64), rows)
    assert counts_of(rows, 0, 3).tolist() == [1, 2, 1]
    assert rows.jobs[0].tolist() == [1, 2, 0]


@pytest.mark.parametrize("ops", BOTH)
def test_figure_refresh_completed_jobs_leave_and_limits_are_kept(ops: Operators) -> None:
    """Steps 1 and 2 of the text: R_j lets job 0 have one GPU less; the new job gets it."""
    problem = simple(3, [2, 1])
    rows = allocate_rows(1, 2)
    write(rows, 0, np.array([3, 0], np.int32))
    ops.refresh(tables_of(problem), np.ones(1, np.uint64), rows)
    assert jobs_on_gpus(rows, 0) == [0, 0, 1]


def test_figure_crossover_each_gpu_goes_to_one_child_and_its_counterpart_to_the_other() -> None:
    """Coin 1: the first child takes the worker of the first parent; coin 0: of the second one."""
    a, b = {0: 2, 1: 2}, {2: 1, 3: 3}  # GPUs: 0 0 1 1 and 2 3 3 3
    children = reference.cross(a, b, [1, 0, 0, 1], gpus=4)
    # before reorder 0 3 3 1 and 2 0 1 3
    assert children == [{0: 1, 3: 2, 1: 1}, {2: 1, 0: 1, 1: 1, 3: 1}]


@pytest.mark.parametrize("ops", BOTH)
def test_figure_crossover_two_children_of_every_pair(ops: Operators) -> None:
    problem = simple(4, [4, 4, 4, 4])
    rows = allocate_rows(4, 4)
    write(rows, 0, np.array([2, 2, 0, 0], np.int32))
    write(rows, 1, np.array([0, 0, 1, 3], np.int32))
    rng = np.random.default_rng(3)
    ops.crossover(tables_of(problem), np.array([[0, 1]]), seeds(rng, 1), rows, 2, False)
    one, other = all_counts(rows, problem, 4)[2:]
    assert (one + other).tolist() == [2, 2, 1, 3]
    assert one.sum() == other.sum() == 4


@pytest.mark.parametrize("ops", BOTH)
def test_figure_mutation_two_workers_are_replaced_by_job_4(ops: Operators) -> None:
    """Job 1 is preempted; its two workers give way to job 4, the only one that waits."""
    problem = simple(5, [1, 2, 1, 1, 2])
    t = tables_of(problem, slope_share=0.0)
    rows = allocate_rows(65, 5)
    write(rows, 0, np.array([1, 2, 1, 1, 0], np.int32))
    rng = np.random.default_rng(1)
    ops.mutate(t, np.zeros(64, np.int64), np.full(64, 0.3), seeds(rng, 64), rows, 1)
    mutants = [tuple(counts.tolist()) for counts in all_counts(rows, problem, 65)]
    assert (1, 0, 1, 1, 2) in mutants
    assert len(set(mutants)) > 1


@pytest.mark.parametrize("ops", BOTH)
def test_figure_mutation_the_gpus_of_preempted_jobs_go_to_others(ops: Operators) -> None:
    problem = simple(4, [2, 2, 2, 2])
    t = tables_of(problem)
    rows = allocate_rows(65, 4)
    write(rows, 0, np.array([2, 2, 0, 0], np.int32))
    rng = np.random.default_rng(1)
    ops.mutate(t, np.zeros(64, np.int64), np.full(64, 1.0), seeds(rng, 64), rows, 1)
    found = {tuple(counts.tolist()) for counts in all_counts(rows, problem, 65)}
    assert all(sum(counts) == 4 for counts in found)
    assert any(counts[0] == counts[1] == 0 for counts in found)
    assert len(found) > 3


def test_figure_reorder_workers_of_a_job_lie_side_by_side_in_the_order_of_occurrence() -> None:
    """A child with 1 0 1 2 0 2 on its GPUs is written as 1 1 0 0 2 2."""
    a, b = {0: 2, 1: 2, 2: 2}, {1: 2, 2: 2, 0: 2}
    spread = [1, 0, 1, 2, 0, 2]  # from b, a, a, b, b, a
    child = reference.cross(a, b, [0, 1, 1, 0, 0, 1], gpus=6)[0]
    assert list(child.items()) == [(1, 2), (0, 2), (2, 2)]
    assert child == {job: spread.count(job) for job in child}


def test_reorder_keeps_the_gpus_of_jobs_that_do_not_change() -> None:
    view, posed = running([3, 1, 2])
    before = [places(view.schedule, name) for name in "abc"]
    assert before == [[0, 1, 2], [3], [4, 5]]
    schedule, notes = deployed(view, posed, [1, 1, 4])
    after = [places(schedule, name) for name in "abc"]
    assert after[1] == [3]
    assert set(after[0]) <= {0, 1, 2}
    assert after[2] == [4, 5, 6, 7]  # all on its own node
    assert set(notes) == {"a", "c"}
    same, silent = deployed(view, posed, [3, 1, 2])
    assert [places(same, name) for name in "abc"] == before
    assert not silent


def deployed(
    view: View, posed: PosedProblem, counts: list[int]
) -> tuple[Schedule, dict[JobId, str]]:
    return deploy(
        view,
        posed,
        [np.array(counts, np.int32)],
        may_change=True,
        batch_seconds=0.0,
        speeds=Speeds(),
    )


def running(sizes: list[int]) -> tuple[View, PosedProblem]:
    """Jobs a, b, c, ... on these numbers of GPUs of two nodes of four."""
    scheduler = Scheduler(Cluster.of(8), create("fifo"))
    for name, size in zip("abcdefgh", sizes, strict=False):
        job = Job(id=JobId(name), submitted_at=0.0, requested_gpus=size, min_gpus=1)
        scheduler.handle(ev.JobSubmitted(0.0, job))
    for number, (name, size) in enumerate(zip("abcdefgh", sizes, strict=False), start=1):
        allocation = scheduler.state.schedule[JobId(name)]
        assert allocation.n_gpus == size
        for gpu in allocation.gpus:
            scheduler.handle(ev.WorkerReady(1.0, JobId(name), Generation(number), gpu))
    view = scheduler.state.view()
    settings = OnesSettings()
    known = Knowledge.none()
    jobs = list(view.jobs.values())
    status = JobStatus(smallest_batch=0)
    posed = build_problem(
        view, jobs, dict.fromkeys(view.jobs, status), np.ones((1, len(jobs))), known, settings
    )
    assert posed is not None
    return view, posed


def places(schedule: Schedule, name: str) -> list[int]:
    """GPUs, counted through all nodes."""
    return [4 * int(gpu.node[1:]) + gpu.index for gpu in schedule[JobId(name)].gpus]
