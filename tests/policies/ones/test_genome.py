"""Rows of runs: what is written is read, and jobs may come and go."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ones.policies.ones.place.genome import allocate_rows, copy_rows, counts_of, reindex, write

counts_lists = st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=4)


@given(counts_lists)
def test_a_written_row_is_read_back(lists: list[list[int]]) -> None:
    rows = allocate_rows(len(lists), 6)
    for at, counts in enumerate(lists):
        write(rows, at, np.array(counts, np.int32))
    assert [counts_of(rows, at, 6).tolist() for at in range(len(lists))] == lists


@given(counts_lists, st.permutations(range(9)), st.integers(1, 9))
def test_remaining_jobs_keep_their_gpus_in_any_new_order(
    lists: list[list[int]], now: list[int], n: int
) -> None:
    rows = allocate_rows(len(lists), 6)
    for at, counts in enumerate(lists):
        write(rows, at, np.array(counts, np.int32))
    before = np.array([3, 0, 5, 8, 1, 7])
    keys = np.array(now[:n])
    other = reindex(rows, before, keys)
    for at, counts in enumerate(lists):
        known = dict(zip(before.tolist(), counts, strict=True))
        assert counts_of(other, at, n).tolist() == [known.get(key, 0) for key in keys.tolist()]


def test_remaining_jobs_keep_their_order() -> None:
    rows = allocate_rows(1, 3)
    rows.jobs[0], rows.counts[0], rows.length[0] = [2, 0, 1], [1, 2, 3], 3
    other = reindex(rows, np.array([10, 11, 12]), np.array([12, 9, 11]))
    assert other.length.tolist() == [2]
    assert other.jobs[0, :2].tolist() == [0, 2]
    assert other.counts[0, :2].tolist() == [1, 3]


def test_rows_can_be_chosen_in_place() -> None:
    rows = allocate_rows(3, 2)
    for at in range(3):
        write(rows, at, np.array([at, 1], np.int32))
    copy_rows(rows, np.array([2, 0]), rows)
    assert [counts_of(rows, at, 2).tolist() for at in range(3)] == [[2, 1], [0, 1], [2, 1]]
