"""The selection of jobs, compared with a plain walk over all of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ones.core.job import JobId
from ones.models.rigid_jobs import JobQueue, Rank, RunningJob, WaitingGroup, select_jobs

jobs = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["waits", "runs", "pinned"])), max_size=14
)


def plain_walk(
    all_jobs: Sequence[tuple[Rank, JobId, int, str]], gpus: int
) -> tuple[list[JobId], list[JobId]]:
    """The specification: from the best rank, a job that fits runs, one that does not is skipped."""
    left = gpus - sum(size for _, _, size, how in all_jobs if how == "pinned")
    admitted, evicted = [], []
    for _, job, size, how in sorted(all_jobs):
        if how == "pinned":
            continue
        if size <= left:
            left -= size
            if how == "waits":
                admitted.append(job)
        elif how == "runs":
            evicted.append(job)
    return admitted, evicted


@given(jobs, st.integers(0, 6), st.randoms(use_true_random=False))
def test_groups_and_suffixes_change_nothing(
    rows: list[tuple[int, str]], spare: int, dice: object
) -> None:
    ranks = list(range(len(rows)))
    dice.shuffle(ranks)  # type: ignore[attr-defined]
    all_jobs = [
        ((float(rank),), JobId(f"j{i}"), size, how)
        for i, ((size, how), rank) in enumerate(zip(rows, ranks, strict=True))
    ]
    queue = JobQueue()
    for rank, job, size, how in all_jobs:
        if how == "waits":
            queue.add_waiting(job, WaitingGroup((), size), rank)
        else:
            queue.add_running(RunningJob(rank, job, (), size, size, pinned=how == "pinned"))
    used = sum(size for _, _, size, how in all_jobs if how != "waits")
    selection = select_jobs(
        queue, spare, rank=lambda group, key: key, quota=lambda running: lambda owner, n: True
    )
    assert (selection.admitted, selection.evicted) == plain_walk(all_jobs, used + spare)
    assert selection.left >= 0


def test_a_job_moves_through_the_queue() -> None:
    queue = JobQueue()
    queue.add_waiting(JobId("a"), WaitingGroup((), 2), (1.0,))
    queue.add_waiting(JobId("a"), WaitingGroup((), 2), (3.0,))  # its rank has changed
    queue.add_waiting(JobId("b"), WaitingGroup((), 2), (2.0,))
    assert [members for _, members in queue.groups()] == [[((2.0,), "b"), ((3.0,), "a")]]
    queue.add_running(RunningJob((1.0,), JobId("b"), (), 2, 2))
    queue.add_running(RunningJob((5.0,), JobId("b"), (), 2, 2))
    assert (len(queue), [r.rank for r in queue.running]) == (1, [(5.0,)])
    queue.remove(JobId("b"))
    queue.remove(JobId("a"))
    assert (len(queue), queue.running, list(queue.groups())) == (0, [], [])
