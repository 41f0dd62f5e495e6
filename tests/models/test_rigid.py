"""Who runs, against a plain walk over everybody."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ones.core.job import JobId
from ones.models.rigid import Group, Line, Rank, Runner, who_runs

jobs = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(["waits", "runs", "pinned"])), max_size=14
)


def plain_walk(
    everybody: Sequence[tuple[Rank, JobId, int, str]], gpus: int
) -> tuple[list[JobId], list[JobId]]:
    """The specification: from the best in rank, who fits runs, who does not is passed over."""
    left = gpus - sum(size for _, _, size, how in everybody if how == "pinned")
    admitted, evicted = [], []
    for _, job, size, how in sorted(everybody):
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
    everybody = [
        ((float(rank),), JobId(f"j{i}"), size, how)
        for i, ((size, how), rank) in enumerate(zip(rows, ranks, strict=True))
    ]
    line = Line()
    for rank, job, size, how in everybody:
        if how == "waits":
            line.wait(job, Group((), size), rank)
        else:
            line.run(Runner(rank, job, (), size, size, pinned=how == "pinned"))
    used = sum(size for _, _, size, how in everybody if how != "waits")
    turn = who_runs(
        line, spare, rank=lambda group, key: key, taking=lambda runners: lambda owner, n: True
    )
    assert (turn.admitted, turn.evicted) == plain_walk(everybody, used + spare)
    assert turn.left >= 0


def test_a_job_moves_through_the_line() -> None:
    line = Line()
    line.wait(JobId("a"), Group((), 2), (1.0,))
    line.wait(JobId("a"), Group((), 2), (3.0,))  # its rank has changed
    line.wait(JobId("b"), Group((), 2), (2.0,))
    assert [members for _, members in line.groups()] == [[((2.0,), "b"), ((3.0,), "a")]]
    line.run(Runner((1.0,), JobId("b"), (), 2, 2))
    line.run(Runner((5.0,), JobId("b"), (), 2, 2))
    assert (len(line), [r.rank for r in line.runners]) == (1, [(5.0,)])
    line.forget(JobId("b"))
    line.forget(JobId("a"))
    assert (len(line), line.runners, list(line.groups())) == (0, [], [])
