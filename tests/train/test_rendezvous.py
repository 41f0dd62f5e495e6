"""A store that ends while a worker connects to it is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from ones.train.layout import GroupLayout
from ones.train.process_group import GroupLostError
from ones.train.rendezvous import Rendezvous
from ones.train.store_process import ALIVE, StoreAddress, start_store
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Member

HOST = "127.0.0.1"
PAIR = GroupLayout(1, 0, (Member(worker="n/0", batch=8), Member(worker="n/1", batch=8)))


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of the job; a store that is started here inherits it, and does not outlive the test."""
    monkeypatch.setenv("ONES_TOKEN", "secret")
    yield "secret"
    for process in psutil.process_iter(["cmdline"]):
        if any(word.startswith(str(tmp_path)) for word in process.info["cmdline"] or []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def rendezvous(tmp_path: Path, token: str) -> Iterator[Rendezvous]:
    worker = WorkerEnvironment(
        controller="http://nowhere", token=token, job="j", worker="n/0", plan=1,
        run_dir=str(tmp_path), job_dir=str(tmp_path), checkpoints=str(tmp_path),
    )  # fmt: skip
    rendezvous = Rendezvous(
        worker,
        on_store_started=lambda address: None,
        on_lost=lambda worker, hangs: None,
        on_store_silent=lambda: None,
    )
    yield rendezvous
    rendezvous.leave()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[socket.socket]:
    """The port of a membership server; that of its TCPStore is closed."""
    with socket.create_server((HOST, 0)) as taken, socket.create_server((HOST, 0)) as old:
        address = StoreAddress(HOST, taken.getsockname()[1], old.getsockname()[1])
        taken.close()
        address.write(str(tmp_path))
        yield old


def answer_alive(old: socket.socket) -> None:
    """Says what a living store says when it is asked."""
    line, _ = old.accept()
    with line, line.makefile("rb") as lines:
        assert json.loads(lines.readline()) == {"lives": "secret"}
        line.sendall(ALIVE)


def test_a_store_that_ends_when_a_worker_comes_is_replaced(
    rendezvous: Rendezvous, old: socket.socket, tmp_path: Path
) -> None:
    """Its port accepts two connections, the question whether it lives and the membership."""
    before = StoreAddress.read(str(tmp_path))

    def end() -> None:
        answer_alive(old)
        line, _ = old.accept()
        old.close()
        line.close()

    ending = threading.Thread(target=end)
    ending.start()
    client = rendezvous.membership(may_start=True)
    ending.join()
    assert client.address != before
    assert client.address == StoreAddress.read(str(tmp_path))
    assert not client.broken.is_set()


def test_connecting_fails_at_once_when_the_store_has_died(
    rendezvous: Rendezvous, old: socket.socket
) -> None:
    """The worker is a member but not yet connected to the TCPStore, which would try for two
    minutes."""

    def die() -> None:
        """Answers in any order, as often as it is asked: a busy machine asks again."""
        with contextlib.suppress(OSError):  # the test is over
            while not connecting.is_set():
                line, _ = old.accept()
                with line, line.makefile("rb") as lines:
                    question = json.loads(lines.readline())
                    if "lives" in question:
                        line.sendall(ALIVE)
                        continue
                    line.sendall(json.dumps({"came": "n/0"}).encode() + b"\n")
                    connecting.wait(60)
                    old.close()

    connecting = threading.Event()
    dying = threading.Thread(target=die, daemon=True)
    dying.start()

    def is_connecting() -> bool:
        connecting.set()
        return False

    with pytest.raises(GroupLostError, match="store is gone"):
        rendezvous.connect(PAIR, torch.device("cpu"), is_withdrawn=is_connecting)


def test_the_port_of_a_store_that_died_is_taken_by_the_store_of_another_job(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections, and would take no worker of this job however often it asks."""
    with monkeypatch.context() as of_another_job:
        of_another_job.setenv("ONES_TOKEN", "another")
        theirs = start_store(str(tmp_path / "another"), HOST, "another")
    theirs.write(str(tmp_path))
    assert theirs.is_alive("another")
    assert not theirs.is_alive("secret")
    client = rendezvous.membership(may_start=True, timeout=60)
    assert client.address != theirs
    assert client.address == StoreAddress.read(str(tmp_path))


def test_a_store_that_answers_late_is_not_replaced(rendezvous: Rendezvous, tmp_path: Path) -> None:
    """Workers would not find it any more, and no other one can start beside it."""
    client = rendezvous.membership(may_start=True)
    store = next(
        p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])
    )
    store.suspend()
    again = threading.Timer(6.0, store.resume)  # later than a question waits for its answer
    again.start()
    assert start_store(str(tmp_path), HOST, "secret") == client.address
    again.join()
    assert not client.broken.is_set()
