"""Between worker and controller: nothing lost, nothing twice, and training never waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ones.lab.worker_server import WorkerServer
from ones.train.agent import Agent
from ones.wire import Reports
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Epoch, Order, Ready, Report, Steps, Withdraw


def environment(url: str, token: str = "t") -> WorkerEnvironment:
    return WorkerEnvironment(
        controller=url, token=token, job="j", worker="n/0", plan=1, run_dir="", job_dir="",
        checkpoints="",
    )  # fmt: skip


class Controller:
    """What it has heard, and a server that can be taken away."""

    def __init__(self) -> None:
        self.heard: list[tuple[tuple[int, int], Report]] = []
        self.placed = True
        self.server = WorkerServer("t", on_report=self._hear, has_place=lambda worker: self.placed)

    def _hear(self, message: Reports, report: Report) -> None:
        self.heard.append(((message.plan, message.incarnation), report))

    @property
    def reports(self) -> list[Report]:
        return [report for _, report in self.heard]


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def agent(url: str, **options: Any) -> Agent:
    token = options.pop("token", "t")
    made = Agent(
        environment(url, token),
        on_order=options.get("on_order", lambda order: None),
        on_fenced=options.get("on_fenced", lambda: None),
        on_store=options.get("on_store", lambda address: None),
    )
    made.start()
    return made


def epoch(number: int) -> Epoch:
    return Epoch(epoch=number, steps=1, samples=1)


def test_reports_arrive_in_order_and_once() -> None:
    controller = Controller()
    controller.server.open()
    mine = agent(controller.server.url)
    for number in range(50):
        mine.say(epoch(number))
    assert mine.flush(60)
    mine.stop()
    controller.server.close()
    assert controller.reports == [epoch(number) for number in range(50)]


def test_reports_keep_their_generation() -> None:
    controller = Controller()
    mine = agent(controller.server.url)  # nobody listens yet
    mine.say(epoch(1))
    mine.generation = (2, 1)
    mine.say(epoch(2))
    controller.server.open()
    assert mine.flush(60)
    mine.stop()
    controller.server.close()
    assert controller.heard == [((1, 0), epoch(1)), ((2, 1), epoch(2))]


def test_what_was_said_while_the_controller_was_down_is_told_later(
    capsys: pytest.CaptureFixture[str],
) -> None:
    controller = Controller()
    url = controller.server.url
    mine = agent(url)
    for number in range(5):
        mine.say(Steps(epoch=1, steps=number, samples=number))
    mine.say(Ready())
    assert not mine.flush(0.3)
    controller.server.open()
    assert mine.flush(60)
    mine.stop()
    controller.server.close()
    assert controller.reports[-1] == Ready()
    assert Steps(epoch=1, steps=4, samples=4) in controller.reports
    assert len(controller.reports) < 6  # counts replace one another


def test_an_order_comes_once_and_at_once() -> None:
    controller = Controller()
    controller.server.open()
    orders: list[Order] = []
    stores: list[str] = []
    mine = agent(controller.server.url, on_order=orders.append, on_store=stores.append)
    mine.say(Ready())
    assert mine.flush(60)
    controller.server.store_is("h:1:2")
    controller.server.order("n/0", Withdraw(7, 6))
    eventually(lambda: orders == [Withdraw(7, 6)])
    mine.say(Ready())
    assert mine.flush(60)
    controller.server.order("n/0", Withdraw(9, 8))
    eventually(lambda: len(orders) == 2)
    mine.stop()
    controller.server.close()
    assert orders == [Withdraw(7, 6), Withdraw(9, 8)]
    assert stores[-1] == "h:1:2"


def test_a_worker_without_a_place_is_told() -> None:
    controller = Controller()
    controller.placed = False
    controller.server.open()
    fenced = threading.Event()
    mine = agent(controller.server.url, on_fenced=fenced.set)
    mine.say(Ready())
    assert fenced.wait(60)
    mine.stop()
    controller.server.close()
    assert controller.reports == []


def test_a_wrong_token_is_not_heard() -> None:
    controller = Controller()
    controller.server.open()
    mine = agent(controller.server.url, token="guessed")
    mine.say(Ready())
    assert not mine.flush(0.5)
    mine.stop()
    controller.server.close()
    assert controller.reports == []
