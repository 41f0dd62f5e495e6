"""The roll call's rules, over real connections: who goes on after a death, whoever asks when."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ones.train.roll_call import Reform, RollCall, StoreAddress
from ones.train.store import Calls

TOKEN = "secret"


class Hall:
    """A roll call in a thread of this process, and those who are on it."""

    def __init__(self) -> None:
        self.rules = Calls(token=TOKEN, hang_seconds=60.0, started=time.monotonic())
        #: (who heard it, of whom)
        self.gone: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.workers: list[RollCall] = []
        # in a thread from the beginning: tests with a browser leave a loop running in this one
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        opening = asyncio.start_server(self.rules.serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result()

    def enter(self, name: str, *groups: tuple[int, int]) -> RollCall:
        port = self._server.sockets[0].getsockname()[1]
        worker = RollCall(
            StoreAddress("127.0.0.1", 0, port),
            name,
            TOKEN,
            groups=groups,
            on_came=lambda other: None,
            on_gone=lambda other, hangs: self.gone.put((name, other)),
        )
        self.workers.append(worker)
        self.until(lambda: name in self.rules.workers)
        return worker

    def until(self, holds: Callable[[], bool]) -> None:
        patience = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < patience
            time.sleep(0.005)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.until(lambda: not self.rules.workers)
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    hall = Hall()
    yield hall
    hall.close()


def test_who_asks_again_while_the_word_is_on_its_way_hears_it_again(hall: Hall) -> None:
    """An order interrupts the wait just before the answer comes."""
    first, second = hall.enter("n/0", (1, 0)), hall.enter("n/1", (1, 0))
    second.close()
    word = Reform(1, 1, ("n/0",))
    assert first.reform(1, 0, ("n/0", "n/1"), 12) == word
    assert first.reform(1, 0, ("n/0", "n/1"), 12) == word
    assert not first.expelled


def test_the_others_went_on_without_a_late_one(hall: Hall) -> None:
    late, first = hall.enter("n/1", (0, 0)), hall.enter("n/0", (1, 0))
    assert first.reform(1, 0, ("n/0", "n/1"), 12) == Reform(1, 1, ("n/0",))
    assert late.reform(0, 0, ("n/0", "n/1"), 9) is None
    assert late.expelled


def test_another_process_in_the_place_of_one_that_was_told_is_not_told(hall: Hall) -> None:
    first = hall.enter("n/0", (1, 0))
    assert first.reform(1, 0, ("n/0",), 12) is not None
    hall.rules._word_for["n/0"] = os.getpid() + 1
    assert first.reform(1, 0, ("n/0",), 12) is None
    assert first.expelled


def test_nobody_waits_for_one_that_was_called_elsewhere_meanwhile(hall: Hall) -> None:
    first, newcomer = hall.enter("n/0", (2, 0)), hall.enter("n/1", (2, 0))
    answers: queue.SimpleQueue[Reform | None] = queue.SimpleQueue()
    asking = threading.Thread(
        target=lambda: answers.put(first.reform(2, 0, ("n/0", "n/1"), 12)), daemon=True
    )
    asking.start()
    assert newcomer.reform(2, 0, ("n/0", "n/1"), -1) == Reform(2, 1, ("n/0", "n/1"))
    assert answers.get(timeout=60) == Reform(2, 1, ("n/0", "n/1"))
    newcomer.unfail()
    assert hall.gone.get(timeout=60) == ("n/0", "n/1")
