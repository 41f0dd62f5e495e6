"""Process groups: collectives, messages, and members that are out of reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed

from ones.train.process_group import GroupLostError, ProcessGroup, wait_all
from tests.processes import PATIENCE
from tests.train.thread_groups import CPU, run_in_group

HOST = "127.0.0.1"


@pytest.fixture
def groups() -> Iterator[list[ProcessGroup]]:
    """Two members, here in one process."""
    c10d: Any = torch.distributed
    wait = timedelta(seconds=60)
    store = c10d.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=wait)
    found: dict[int, ProcessGroup] = {}

    def connect(rank: int) -> None:
        line = c10d.TCPStore(
            HOST, store.port, is_master=False, wait_for_workers=False, timeout=wait
        )
        found[rank] = ProcessGroup.connect(
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


def test_a_sum_that_a_member_never_joins_fails_once_the_group_is_aborted(
    groups: list[ProcessGroup],
) -> None:
    mine = torch.ones(4)
    both = [groups[0].all_reduce(mine), groups[1].all_reduce(torch.ones(4))]
    wait_all(both)
    assert mine.tolist() == [2.0] * 4

    work = groups[0].all_reduce(torch.ones(4))
    waits = threading.Thread(target=lambda: outcome.append(_outcome(work)), daemon=True)
    outcome: list[str] = []
    waits.start()
    waits.join(0.3)
    assert waits.is_alive(), "the group was not aborted yet"
    groups[0].abort(hangs=True)
    waits.join(PATIENCE)
    assert outcome == ["lost"]


def _outcome(work: object) -> str:
    try:
        wait_all([work])
    except GroupLostError:
        return "lost"
    return "done"


def test_members_agree_or_not() -> None:
    assert run_in_group(3, lambda group, rank: group.all_equal(7)) == [True] * 3
    assert run_in_group(3, lambda group, rank: group.all_equal(7 + (rank == 2))) == [False] * 3


def test_leave_acknowledgement_waits_for_all() -> None:
    assert run_in_group(3, lambda group, rank: group.acknowledge_leave([0, 2])) == [None] * 3


def test_a_message_may_take_longer_than_connecting() -> None:
    """A joining worker waits for as long as a step takes."""
    c10d: Any = torch.distributed
    store, arrived = c10d.HashStore(), []

    def run(rank: int) -> None:
        group = ProcessGroup.connect(
            store, "late", rank=rank, size=2, host="127.0.0.1", device=CPU, timeout=4.0
        )
        if rank == 0:
            time.sleep(5.0)
            wait_all([group.send(torch.ones(1), 1)])
        else:
            word = torch.zeros(1)
            wait_all([group.receive(word, 0)])
            arrived.append(float(word))
        group.all_gather(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrived == [1.0]


def test_a_lost_group_closes_although_a_sum_is_under_way(groups: list[ProcessGroup]) -> None:
    """gloo's destructor would wait for the sum until its timeout of 12 hours."""
    work = groups[0].all_reduce(torch.ones(4))
    closes = threading.Thread(target=lambda: groups[0].close(is_lost=True), daemon=True)
    closes.start()
    closes.join(PATIENCE)
    assert not closes.is_alive()
    assert _outcome(work) == "lost"
