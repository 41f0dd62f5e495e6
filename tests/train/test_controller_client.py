"""Between worker and controller: nothing lost, nothing twice, and training never waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ones.lab.worker_server import WorkerServer
from ones.train import unsent_reports
from ones.train.controller_client import ControllerClient
from ones.wire import Reports, unpack
from ones.wire.environment import KEPT_REPORTS, WorkerEnvironment
from ones.wire.messages import Epoch, Leaving, Order, Ready, Report, Steps, Withdraw


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


def client(url: str, **options: Any) -> ControllerClient:
    token = options.pop("token", "t")
    made = ControllerClient(
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
    mine = client(controller.server.url)
    for number in range(50):
        mine.report(epoch(number))
    assert mine.flush(60)
    mine.stop()
    controller.server.close()
    assert controller.reports == [epoch(number) for number in range(50)]


def test_a_report_that_is_refused_is_left_out_and_the_others_arrive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = Controller()
    mine = client(controller.server.url)
    reports = [epoch(1), epoch(2), Epoch(epoch=3, steps=-1, samples=1), epoch(4), epoch(5)]
    for report in reports:
        mine.report(report)
    controller.server.open()
    assert mine.flush(60)
    mine.stop()
    controller.server.close()
    assert controller.reports == [epoch(1), epoch(2), epoch(4), epoch(5)]
    assert "the controller refused a report (Epoch)" in caplog.text


def test_reports_keep_their_generation() -> None:
    controller = Controller()
    mine = client(controller.server.url)  # there is no server yet
    mine.report(epoch(1))
    mine.generation = (2, 1)
    mine.report(epoch(2))
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
    mine = client(url)
    for number in range(5):
        mine.report(Steps(epoch=1, steps=number, samples=number))
    mine.report(Ready())
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
    mine = client(controller.server.url, on_order=orders.append, on_store=stores.append)
    mine.report(Ready())
    assert mine.flush(60)
    controller.server.store_is("h:1:2")
    controller.server.order("n/0", Withdraw(7, 6))
    eventually(lambda: orders == [Withdraw(7, 6)])
    mine.report(Ready())
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
    mine = client(controller.server.url, on_fenced=fenced.set)
    mine.report(Ready())
    assert fenced.wait(60)
    mine.stop()
    controller.server.close()
    assert controller.reports == []


def test_a_wrong_token_is_not_heard() -> None:
    controller = Controller()
    controller.server.open()
    mine = client(controller.server.url, token="guessed")
    mine.report(Ready())
    assert not mine.flush(0.5)
    mine.stop()
    controller.server.close()
    assert controller.reports == []


# a controller that is away when the worker ends


def ending(url: str, run_dir: Path) -> ControllerClient:
    made = ControllerClient(
        replace(environment(url), run_dir=str(run_dir)),
        on_order=lambda order: None,
        on_fenced=lambda: None,
        on_store=lambda address: None,
    )
    made.start()
    return made


def kept_in(run_dir: Path) -> list[Reports]:
    lines = (run_dir / KEPT_REPORTS).read_bytes().splitlines()
    found = [unpack(line) for line in lines]
    assert all(isinstance(message, Reports) for message in found)
    return [message for message in found if isinstance(message, Reports)]


def test_unacknowledged_reports_are_on_disk_when_the_worker_has_ended(tmp_path: Path) -> None:
    controller = Controller()
    controller.server.open()
    mine = ending(controller.server.url, tmp_path)
    mine.report(epoch(1))
    assert mine.flush(60)
    controller.server.close()
    mine.report(epoch(2))
    mine.generation = (2, 1)
    mine.report(epoch(3))
    mine.report(Leaving(done=True))
    mine.close(60)
    first, second = kept_in(tmp_path)
    assert (first.job, first.worker, first.plan, first.first) == ("j", "n/0", 1, 2)
    assert first.reports == (epoch(2),)
    assert (second.plan, second.incarnation, second.first) == (2, 1, 3)
    assert second.reports == (epoch(3), Leaving(done=True))
    assert (tmp_path / KEPT_REPORTS).stat().st_mode & 0o777 == 0o600


def test_nothing_is_kept_when_all_was_heard(tmp_path: Path) -> None:
    controller = Controller()
    controller.server.open()
    mine = ending(controller.server.url, tmp_path)
    mine.report(epoch(1))
    mine.close(60)
    controller.server.close()
    assert not list(tmp_path.iterdir())


def test_the_newest_reports_are_kept_where_there_are_too_many(tmp_path: Path) -> None:
    messages = [
        Reports(job="j", worker="n/0", plan=1, first=n, reports=(epoch(n),)) for n in range(1, 100)
    ]
    unsent_reports.write(str(tmp_path), messages, max_bytes=1000)
    found = kept_in(tmp_path)
    assert found == messages[-len(found) :]
    assert 3 < len(found) < 99
    assert (tmp_path / KEPT_REPORTS).stat().st_size <= 1000


def test_a_worker_that_exits_in_the_middle_keeps_its_reports_and_says_so_once(
    tmp_path: Path,
) -> None:
    """Its script raises SystemExit while the controller is away, and sets up no logging."""
    script = f"""
import sys, time
from ones.train.controller_client import ControllerClient
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Ready
environment = WorkerEnvironment(controller="http://127.0.0.1:9", token="secret", job="j",
    worker="n/0", plan=1, run_dir={str(tmp_path)!r}, job_dir="", checkpoints="")
client = ControllerClient(environment, on_order=print, on_fenced=print, on_store=print)
client.start()
client.report(Ready())
while not client._warned:
    time.sleep(0.01)
sys.exit(143)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 143
    assert done.stderr.startswith("ones: the controller does not answer ([Errno 111]")
    assert done.stderr.count("\n") == 1
    (message,) = kept_in(tmp_path)
    assert message.reports == (Ready(),)
