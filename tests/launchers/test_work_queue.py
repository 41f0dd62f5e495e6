"""Work for the thread of a launcher."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ones.launchers.work_queue import WorkQueue, wait_for_input


@pytest.fixture
def queue() -> Iterator[WorkQueue]:
    queue = WorkQueue()
    yield queue
    queue.close()


def test_work_from_other_threads_wakes_and_is_done_in_order(queue: WorkQueue) -> None:
    done: list[int] = []

    def ask() -> None:
        for number in range(100):
            queue.add(lambda number=number: done.append(number))  # type: ignore[misc]

    asks = threading.Thread(target=ask)
    asks.start()
    while len(done) < 100:
        wait_for_input([queue], None)  # for ever, unless it is woken
        queue.run_all()
    asks.join()
    assert done == list(range(100))


def test_work_for_a_thread_that_has_ended_is_no_error(queue: WorkQueue) -> None:
    done: list[int] = []
    queue.close()
    queue.add(lambda: done.append(1))
    assert done == []


def test_more_wakes_than_the_socket_holds_are_one(queue: WorkQueue) -> None:
    done: list[int] = []
    for _ in range(100_000):
        queue.add(lambda: done.append(1))
    queue.run_all()
    assert len(done) == 100_000


def test_work_that_raises_does_not_keep_others_from_theirs() -> None:
    queue, done = WorkQueue(), list[int]()
    queue.add(lambda: done.remove(7))  # raises
    queue.add(lambda: done.append(1))
    queue.run_all()
    queue.close()
    assert done == [1]
