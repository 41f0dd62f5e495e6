"""Streams: every sample of an epoch exactly once, however the workers change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import IterableDataset

from ones.errors import UserError
from ones.train.loading import LoaderOptions
from ones.train.progress import TrainingProgress
from ones.train.sampler import BatchPartition
from ones.train.stream_loader import StreamLoader
from ones.train.stream_plan import UNKNOWN, divide, pick

shares = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


class Shards:
    """A source of our own protocol; counts the samples that were read."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths, self.num_shards = lengths, len(lengths)
        self.read_samples = 0

    def read(self, shard: int, start: int, epoch: int) -> Iterator[tuple[int, int]]:
        for i in range(start, self.lengths[shard]):
            self.read_samples += 1
            yield shard, i


class Numbers(IterableDataset[tuple[int, int]]):
    """An iterable that cannot seek."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(0, i) for i in range(self.size)])


class Exchange:
    """Sums tensors over threads."""

    def __init__(self, size: int) -> None:
        self.meeting, self._values = threading.Barrier(size), list[Tensor]()

    def __call__(self, values: Tensor) -> bool:
        if self.meeting.wait() == 0:
            self._values.clear()
        self.meeting.wait()
        self._values.append(values.clone())
        self.meeting.wait()
        values.copy_(sum(self._values[1:], self._values[0]))
        self.meeting.wait()
        return True


@dataclass
class Turn:
    """The steps of one worker between two changes."""

    loader: StreamLoader
    part: BatchPartition
    steps: int
    fails: bool  # the last step does not count
    exchange: Exchange
    taken: list[tuple[int, list[Any]]] = field(default_factory=list)
    is_over: bool = True
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error
            self.exchange.meeting.abort()

    def _run(self) -> None:
        progress = self.loader._progress
        made = self.loader.steps(self.part, progress.epoch, progress.offset)
        for step, micro_batches in filter(None, made):
            got = [sample for micro in micro_batches for sample in micro]
            assert got  # a filler has samples, too, which do not count
            is_last = len(self.taken) + 1 == self.steps
            if is_last and self.fails:
                self.is_over = False
                return
            self.taken.append((step.total, [] if step.is_filler else got))
            progress.offset, progress.positions = step.end, list(step.positions)
            if is_last:
                self.is_over = progress.offset >= self.loader.size
                return


@dataclass
class Workers:
    """Workers in threads, which take steps together until one of them has none left."""

    source: Callable[[], Any]
    loaders: list[StreamLoader] = field(default_factory=list)
    generation: int = 0

    def work(
        self, now: tuple[int, ...], state: TrainingProgress, steps: int, fails: bool, minimum: int
    ) -> tuple[TrainingProgress, list[Any], bool]:
        """Takes up to `steps` steps. `fails`: the last of them does not count."""
        self.generation += 1
        while len(self.loaders) < len(now):
            self.loaders.append(self._new(state))
        del self.loaders[len(now) :]
        exchange = Exchange(len(now))
        turns = []
        for rank, loader in enumerate(self.loaders):
            loader.connect(lambda: (self.generation, 0), exchange)
            loader._progress.load(state.state())
            part = BatchPartition(
                shares=now, micro_steps=(2,) * len(now), rank=rank, minimum=minimum
            )
            turns.append(Turn(loader, part, steps, fails, exchange))
        threads = [threading.Thread(target=turn.run) for turn in turns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [turn.error for turn in turns if turn.error is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        states = [loader._progress.state() for loader in self.loaders]
        assert all(other == states[0] for other in states)
        seen = []
        for at_once in zip(*(turn.taken for turn in turns), strict=True):
            samples = [sample for _, got in at_once for sample in got]
            assert len(samples) == at_once[0][0]
            seen.append(samples)
        return self.loaders[0]._progress, seen, turns[0].is_over

    def _new(self, state: TrainingProgress) -> StreamLoader:
        progress = TrainingProgress()
        progress.load(state.state())
        options = LoaderOptions(collate_fn=list)
        return StreamLoader(self.source(), options, progress=progress, batch_size=4)


def epoch(
    source: Callable[[], Any],
    changes: list[tuple[tuple[int, ...], int, bool]],
    minimum: int = 1,
    *,
    restarts: bool = False,
    number: int = 0,
) -> tuple[list[list[Any]], TrainingProgress]:
    """The samples of each step of an epoch. `restarts`: from a checkpoint, at each change."""
    workers, state, seen = Workers(source), TrainingProgress(epoch=number), []
    for now, steps, fails in itertools.cycle(changes):
        state, more, is_over = workers.work(now, state, steps, fails, minimum)
        seen += more
        if is_over:
            return seen, state
        if restarts:
            workers.loaders.clear()
    raise AssertionError


changes = st.lists(st.tuples(shares, st.integers(2, 12), st.booleans()), min_size=1, max_size=6)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple),
    changes=changes,
    minimum=st.integers(1, 2),
    restarts=st.booleans(),
)
@example(lengths=(0, 0, 5), changes=[((1, 1, 1), 2, False)], minimum=1, restarts=False)
@example(lengths=(16,), changes=[((2, 2), 3, True)], minimum=1, restarts=True)
def test_every_sample_of_shards_exactly_once_under_any_change(
    lengths: tuple[int, ...],
    changes: list[tuple[tuple[int, ...], int, bool]],
    minimum: int,
    restarts: bool,
) -> None:
    seen, state = epoch(lambda: Shards(lengths), changes, minimum, restarts=restarts)
    whole = [(shard, i) for shard, length in enumerate(lengths) for i in range(length)]
    assert sorted(itertools.chain(*seen)) == whole
    assert state.lengths == list(lengths)
    assert state.offset == len(whole)


@given(size=st.integers(0, 120), changes=changes, restarts=st.booleans())
def test_every_sample_of_an_iterable_exactly_once_and_in_order(
    size: int, changes: list[tuple[tuple[int, ...], int, bool]], restarts: bool
) -> None:
    seen, _ = epoch(lambda: Numbers(size), changes, restarts=restarts)
    assert [i for _, i in itertools.chain(*seen)] == list(range(size))


def test_the_samples_of_a_step_do_not_depend_on_the_workers() -> None:
    lengths = (13, 30, 7, 22)
    alone, _ = epoch(lambda: Shards(lengths), [((8,), 99, False)])
    together, _ = epoch(lambda: Shards(lengths), [((8,), 3, False), ((3, 3, 2), 2, False)])
    assert [sorted(step) for step in alone] == [sorted(step) for step in together]


def test_a_worker_reads_its_own_shards_only() -> None:
    sources = [Shards((40, 40, 40, 40)) for _ in range(2)]
    made = iter(sources)
    epoch(lambda: next(made), [((4, 4), 99, False)])
    assert [source.read_samples for source in sources] == [80, 80]


def test_a_resumed_job_begins_where_the_source_was_left() -> None:
    sources = [Shards((40, 40)) for _ in range(2)]
    made = iter(sources)
    workers, state = Workers(lambda: next(made)), TrainingProgress()
    state, _, _ = workers.work((8,), state, 8, False, 1)
    workers.loaders.clear()
    workers.work((8,), state, 99, False, 1)
    assert sources[1].read_samples == 80 - 64


def test_picks_are_divided_by_shard() -> None:
    picks = pick([0, 0, 0, 0], [UNKNOWN] * 4, 8)
    assert [[p.shard for p in part] for part in divide(picks, (4, 4))] == [[0, 2], [1, 3]]


def test_a_generator_is_not_read_twice() -> None:
    loader = StreamLoader(
        iter(range(8)), LoaderOptions(), progress=TrainingProgress(), batch_size=4
    )
    one = BatchPartition(shares=(4,), micro_steps=(1,), rank=0)
    assert next(iter(loader.steps(one, 0, 0))) is not None
    with pytest.raises(UserError, match="read once only: give the function that makes it"):
        next(iter(loader.steps(one, 1, 0)))


def test_workers_with_different_samples_are_stopped() -> None:
    sizes = iter((20, 24))
    with pytest.raises(UserError, match="shard 0 of the stream ends at different samples"):
        epoch(lambda: Numbers(next(sizes)), [((4, 4), 99, False)])


def test_another_number_of_shards_is_refused() -> None:
    state = TrainingProgress(positions=[3, 3], lengths=[UNKNOWN] * 2, offset=6)
    with pytest.raises(UserError, match="has 3 shards, and had 2 before"):
        Workers(lambda: Shards((9, 9, 9))).work((4,), state, 1, False, 1)
