"""Every sample of an epoch exactly once, however the workers change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ones.train.loading import _slices
from ones.train.sampler import (
    BatchPartition,
    micro_batch_sizes,
    permutation,
    split_samples,
    step_samples,
)

shares = st.lists(st.integers(1, 40), min_size=1, max_size=8).map(tuple)


@given(st.integers(1, 400), shares, st.integers(1, 3))
def test_a_split_loses_nothing_and_gives_no_worker_too_few(
    total: int, parts: tuple[int, ...], minimum: int
) -> None:
    counts = split_samples(total, parts, minimum)
    assert sum(counts) == total
    assert len(counts) == len(parts)
    if total >= minimum and all(p >= minimum for p in parts):
        assert all(c == 0 or c >= minimum for c in counts)


@given(st.integers(1, 200), st.integers(1, 6), st.none() | st.integers(1, 50), st.integers(1, 3))
def test_micro_batches_keep_to_the_limit(
    count: int, steps: int, limit: int | None, minimum: int
) -> None:
    sizes = micro_batch_sizes(count, steps, limit, minimum)
    assert sum(sizes) == count
    if limit is None or steps > -(-count // limit):
        assert max(sizes) - min(sizes) <= 1
    if minimum == 1 and limit is not None:
        assert max(sizes) <= limit
    assert all(size >= min(minimum, count) for size in sizes)


def test_parts_that_the_limit_makes_are_those_of_a_dataloader() -> None:
    assert micro_batch_sizes(12, 1, 5) == [5, 5, 2]
    assert micro_batch_sizes(11, 1, 5, 2) == [4, 4, 3]  # batch norm cannot take a single sample
    partition = BatchPartition(shares=(20,), micro_steps=(4,), rank=0, limit=5)
    parts = [partition.slice(start, 32) for start in (0, 20)]
    assert [part.micro_batches for part in parts if part] == [(5, 5, 5, 5), (5, 5, 2)]


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    one = permutation(50, seed=3, epoch=2).tolist()
    assert one == permutation(50, seed=3, epoch=2).tolist()
    assert one != permutation(50, seed=3, epoch=1).tolist()
    assert one != permutation(50, seed=2, epoch=2).tolist()
    assert permutation(5, seed=0, epoch=9, shuffle=False).tolist() == [0, 1, 2, 3, 4]


def test_a_rest_that_batch_norm_cannot_take_goes_with_the_step_before() -> None:
    assert step_samples(65, 64, minimum=2) == 65
    assert step_samples(66, 64, minimum=2) == 64
    assert step_samples(3, 64, minimum=2) == 3


@given(
    size=st.integers(1, 300),
    changes=st.lists(shares, min_size=1, max_size=12),
    every=st.integers(1, 4),
    limit=st.none() | st.integers(1, 16),
    minimum=st.integers(1, 2),
    lost=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_every_sample_exactly_once_under_any_change(
    size: int,
    changes: list[tuple[int, ...]],
    every: int,
    limit: int | None,
    minimum: int,
    lost: list[bool],
) -> None:
    """`lost`: the step failed and is taken again, perhaps by others."""
    order = permutation(size, seed=1, epoch=0)
    seen: list[int] = []
    offset = tried = 0
    while offset < size:
        now = changes[(tried // every) % len(changes)]
        step: list[int] = []
        for rank in range(len(now)):
            partition = BatchPartition(
                shares=now, micro_steps=(1,) * len(now), rank=rank, limit=limit, minimum=minimum
            )
            part = partition.slice(offset, size)
            assert part is not None
            step += order[part.first : part.first + part.count].tolist()
        tried += 1
        assert part is not None
        if tried <= len(lost) and lost[tried - 1]:
            continue
        assert len(step) == part.total
        seen += step
        offset = part.end
    assert sorted(seen) == list(range(size))
    assert partition.slice(offset, size) is None


@given(
    shares=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    size=st.integers(1, 400),
    limit=st.integers(1, 30) | st.none(),
    minimum=st.integers(1, 2),
)
def test_the_steps_of_an_epoch_are_those_of_each_position(
    shares: list[int], size: int, limit: int | None, minimum: int
) -> None:
    """Steps of equal size are made from the one before, which costs less."""
    partition = BatchPartition(
        shares=tuple(shares), micro_steps=(1,) * len(shares), rank=len(shares) - 1, limit=limit,
        minimum=minimum,
    )  # fmt: skip
    found = list(_slices(partition, 0, size))
    assert found == [partition.slice(part.start, size) for part in found]
    assert [part.start for part in found[1:]] == [part.end for part in found[:-1]]
    assert found[-1].end == size
