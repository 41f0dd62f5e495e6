"""The membership server, over real connections: which workers continue after a loss."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ones.train.membership import MembershipClient, Survivors
from ones.train.store import MembershipServer
from ones.train.store_process import StoreAddress
from tests.processes import PATIENCE

HOST = "127.0.0.1"
TOKEN = "secret"


class Members:
    """A membership server in a thread of this process, and its clients."""

    def __init__(self) -> None:
        self.server = MembershipServer(token=TOKEN, hang_seconds=60.0, started=time.monotonic())
        #: (worker that was told, worker that left)
        self.gone: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.workers: list[MembershipClient] = []
        # in a thread from the beginning: tests with a browser leave a loop running in this one
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        opening = asyncio.start_server(self.server.serve, HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result()

    def join(self, name: str, *groups: tuple[int, int]) -> MembershipClient:
        port = self._server.sockets[0].getsockname()[1]
        worker = MembershipClient(
            StoreAddress(HOST, 0, port),
            name,
            TOKEN,
            generations=groups,
            on_joined=lambda other: None,
            on_left=lambda other, hangs: self.gone.put((name, other)),
        )
        self.workers.append(worker)
        self.until(lambda: name in self.server.workers)
        return worker

    def until(self, holds: Callable[[], bool]) -> None:
        patience = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < patience
            time.sleep(0.005)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.until(lambda: not self.server.workers)
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def members() -> Iterator[Members]:
    members = Members()
    yield members
    members.close()


def test_a_worker_that_asks_again_gets_the_same_answer(members: Members) -> None:
    """An order interrupts the wait just before the answer comes."""
    first, second = members.join("n/0", (1, 0)), members.join("n/1", (1, 0))
    second.close()
    answer = Survivors(1, 1, ("n/0",))
    assert first.report_failure(1, 0, ("n/0", "n/1"), 12) == answer
    assert first.report_failure(1, 0, ("n/0", "n/1"), 12) == answer
    assert not first.expelled


def test_a_late_worker_is_expelled(members: Members) -> None:
    late, first = members.join("n/1", (0, 0)), members.join("n/0", (1, 0))
    assert first.report_failure(1, 0, ("n/0", "n/1"), 12) == Survivors(1, 1, ("n/0",))
    assert late.report_failure(0, 0, ("n/0", "n/1"), 9) is None
    assert late.expelled


def test_a_new_process_of_the_same_name_gets_no_answer(members: Members) -> None:
    first = members.join("n/0", (1, 0))
    assert first.report_failure(1, 0, ("n/0",), 12) is not None
    members.server._answered["n/0"] = os.getpid() + 1
    assert first.report_failure(1, 0, ("n/0",), 12) is None
    assert first.expelled


def test_no_worker_waits_for_one_that_withdrew_its_failure(members: Members) -> None:
    first, joining = members.join("n/0", (2, 0)), members.join("n/1", (2, 0))
    answers: queue.SimpleQueue[Survivors | None] = queue.SimpleQueue()
    asking = threading.Thread(
        target=lambda: answers.put(first.report_failure(2, 0, ("n/0", "n/1"), 12)), daemon=True
    )
    asking.start()
    assert joining.report_failure(2, 0, ("n/0", "n/1"), -1) == Survivors(2, 1, ("n/0", "n/1"))
    assert answers.get(timeout=60) == Survivors(2, 1, ("n/0", "n/1"))
    joining.withdraw_failure()
    assert members.gone.get(timeout=60) == ("n/0", "n/1")


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_connection_without_pings_is_broken_and_silent(
    monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    monkeypatch.setenv("ONES_HANG_SECONDS", "600" if is_closed else "0.3")
    connections: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def welcome() -> None:
        connection, _ = store.accept()
        connection.sendall(b'{"came": "n0/0"}\n')
        connections.put(connection)

    with socket.create_server((HOST, 0)) as store:
        threading.Thread(target=welcome, daemon=True).start()
        client = MembershipClient(
            StoreAddress(HOST, 0, store.getsockname()[1]), "n0/0", "token", generations=[],
            on_joined=lambda worker: None, on_left=lambda worker, hangs: None,
        )  # fmt: skip
        with connections.get(timeout=PATIENCE) as connection:
            connection.sendall(b'{"ping": 1}\n')
            if is_closed:
                connection.shutdown(socket.SHUT_RDWR)
            assert client.broken.wait(PATIENCE)
    assert client.is_silent is not is_closed
    assert client.report_failure(1, 0, ("n0/0",), 0) is None, "it does not wait for an answer"
    client.close()
