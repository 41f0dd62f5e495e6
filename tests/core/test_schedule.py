"""A schedule is a value: editing gives another one, and remembers what it touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.core import Allocation, Cluster, Gpu, JobId, NodeId, Schedule, Worker, diff
from tests.strategies import schedules

CLUSTER = Cluster.of(6, 2)
JOBS = tuple(JobId(f"j{i}") for i in range(4))


def gpu(index: int) -> Gpu:
    return Gpu(NodeId("n0"), index)


def one(index: int, batch: int = 8) -> Allocation:
    return Allocation((Worker(gpu(index), batch),))


edits = st.lists(
    st.tuples(st.sampled_from([JobId(f"j{i}") for i in range(60)]), st.none() | st.integers(0, 99)),
    max_size=200,
)


@given(edits)
def test_any_edits_give_what_a_dictionary_would(changes: list[tuple[JobId, int | None]]) -> None:
    schedule, model = Schedule(), dict[JobId, Allocation]()
    versions = [(schedule, dict(model))]
    for job, index in changes:
        edit = schedule.edit()
        if index is None:
            edit.drop(job)
            model.pop(job, None)
        else:
            edit.put(job, one(index))
            model[job] = one(index)
        schedule = edit.done()
        versions.append((schedule, dict(model)))
    for version, expected in versions:  # older ones have not changed
        assert dict(version.items()) == expected
        assert len(version) == len(expected)
        assert list(version) == sorted(expected)
        assert all(job in version for job in expected)


def test_an_edit_that_changes_nothing_gives_the_same_schedule() -> None:
    edit = Schedule({JOBS[0]: one(0)}).edit()
    before = edit.done()
    edit.put(JOBS[0], one(0))
    edit.drop(JOBS[1])
    assert edit.done() is before


def test_edits_of_edits_count_from_the_same_root() -> None:
    root = Schedule({JOBS[0]: one(0)})
    first = root.edit()
    first.put(JOBS[1], one(1))
    second = first.done().edit()
    second.put(JOBS[2], one(2))
    assert second.done().related(root)
    assert second.done().touched == {JOBS[1], JOBS[2]}
    assert not second.done().rooted().touched


@given(schedules(CLUSTER, JOBS), schedules(CLUSTER, JOBS))
def test_diff_names_just_the_jobs_that_change(a: Schedule, b: Schedule) -> None:
    changed = {c.job: (c.before, c.after) for c in diff(a, b)}
    for job in JOBS:
        if a.get(job) == b.get(job):
            assert job not in changed
        else:
            assert changed[job] == (a.get(job), b.get(job))


@given(schedules(CLUSTER, JOBS), schedules(CLUSTER, JOBS))
def test_diff_of_an_edit_equals_diff_from_scratch(a: Schedule, b: Schedule) -> None:
    edit = a.edit()
    for job in JOBS:
        edit.set(job, b.get(job))
    assert diff(a, edit.done()) == diff(a, b)
    assert edit.done() == b


@given(st.integers(1, 9), st.integers(1, 500), st.none() | st.integers(1, 64))
def test_an_even_split_loses_no_sample_and_fits_memory(
    n_gpus: int, more: int, limit: int | None
) -> None:
    batch = n_gpus - 1 + more
    allocation = Allocation.even([gpu(i) for i in range(n_gpus)], batch, limit)
    shares = [w.batch for w in allocation.workers]
    assert sum(shares) == allocation.batch == batch
    assert max(shares) - min(shares) <= 1
    assert limit is None or allocation.largest_part <= limit


@given(st.integers(2, 8), st.integers(1, 300), st.integers(1, 64), st.data())
def test_survivors_keep_the_global_batch_within_what_memory_has_proven(
    n_gpus: int, more: int, limit: int, data: st.DataObject
) -> None:
    held = Allocation.even([gpu(i) for i in range(n_gpus)], n_gpus + more, limit)
    stay = data.draw(st.integers(1, n_gpus - 1))
    interim = held.survivors(frozenset(held.gpus[:stay]))
    assert interim.batch == held.batch
    assert interim.gpus == held.gpus[:stay]
    assert interim.largest_part <= held.largest_part


def test_a_batch_smaller_than_the_workers_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="a batch of 1 cannot be split over 2 workers"):
        Allocation.even([gpu(0), gpu(1)], 1)


def test_allocations_are_equal_whatever_order_they_were_made_in() -> None:
    a, b = Worker(gpu(0), 4), Worker(gpu(1), 4)
    assert Allocation((a, b)) == Allocation((b, a))
