"""Others that cannot be reached do not end their connections: whoever waits for them is woken."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed

from ones.train.group import Group, GroupLostError, wait_all
from ones.train.roll_call import RollCall, StoreAddress
from tests.processes import PATIENCE

HOST = "127.0.0.1"


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    """Two members, here in one process."""
    c10d: Any = torch.distributed
    wait = timedelta(seconds=60)
    store = c10d.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=wait)
    found: dict[int, Group] = {}

    def connect(rank: int) -> None:
        line = c10d.TCPStore(
            HOST, store.port, is_master=False, wait_for_workers=False, timeout=wait
        )
        found[rank] = Group.connect(
            line, "1.0", rank=rank, size=2, host=HOST, device=torch.device("cpu"), timeout=60.0
        )

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield [found[0], found[1]]
    for group in found.values():
        group.close()


def test_a_sum_that_a_member_never_joins_fails_once_the_group_is_severed(
    groups: list[Group],
) -> None:
    mine = torch.ones(4)
    both = [groups[0].sum(mine), groups[1].sum(torch.ones(4))]
    wait_all(both)
    assert mine.tolist() == [2.0] * 4

    work = groups[0].sum(torch.ones(4))
    waits = threading.Thread(target=lambda: outcome.append(_outcome(work)), daemon=True)
    outcome: list[str] = []
    waits.start()
    waits.join(0.3)
    assert waits.is_alive(), "nobody has told it anything"
    groups[0].sever()
    waits.join(PATIENCE)
    assert outcome == ["lost"]


def _outcome(work: object) -> str:
    try:
        wait_all([work])
    except GroupLostError:
        return "lost"
    return "done"


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_roll_call_without_a_word_is_broken_and_said_to_be_silent(
    monkeypatch: pytest.MonkeyPatch, *, hangs_up: bool
) -> None:
    monkeypatch.setenv("ONES_HANG_SECONDS", "600" if hangs_up else "0.3")
    lines: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def welcome() -> None:
        line, _ = store.accept()
        line.sendall(b'{"came": "n0/0"}\n')
        lines.put(line)

    with socket.create_server((HOST, 0)) as store:
        threading.Thread(target=welcome, daemon=True).start()
        calls = RollCall(
            StoreAddress(HOST, 0, store.getsockname()[1]), "n0/0", "token", groups=[],
            on_came=lambda worker: None, on_gone=lambda worker, hangs: None,
        )  # fmt: skip
        with lines.get(timeout=PATIENCE) as line:
            line.sendall(b'{"ping": 1}\n')
            if hangs_up:
                line.shutdown(socket.SHUT_RDWR)
            assert calls.broken.wait(PATIENCE)
    assert calls.is_silent is not hangs_up
    assert calls.reform(1, 0, ("n0/0",), 0) is None, "nobody waits for an answer"
    calls.close()
