"""Between worker and controller: nothing lost, nothing twice, and training never waits."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ones.config import ServiceSettings
from ones.control.clock import Clock
from ones.control.limits import Limits
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import LiveJob, LiveWorker
from ones.control.live.live_state import EngineDeps
from ones.control.persistence import Done
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core.cluster import Cluster, Gpu, NodeId
from ones.core.engine import drive
from ones.core.job import JobId
from ones.core.scheduler import Scheduler
from ones.lab.elastic_run import MemoryRecorder
from ones.lab.worker_server import WorkerServer
from ones.launchers import Launcher
from ones.policies import create
from ones.train import unsent_reports
from ones.train.controller_client import ControllerClient
from ones.wire import Reports, unpack
from ones.wire.environment import KEPT_REPORTS, WorkerEnvironment
from ones.wire.messages import Epoch, Leaving, Order, Ready, Report, Steps, Withdraw
from tests.cut_answers import CuttingProxy

TOKENS = JobTokens(b"key")
LAUNCH = "j~1~n.0"
NO_LAUNCHER = cast(Launcher, None)  # no process is started or stopped


def environment(url: str, token: str) -> WorkerEnvironment:
    return WorkerEnvironment(
        controller=url, token=token, job="j", worker="n/0", plan=1, run_dir="", job_dir="",
        checkpoints="",
    )  # fmt: skip


class Controller:
    """The live engine with one worker, and a server that can be taken away."""

    def __init__(self) -> None:
        self.heard: list[tuple[tuple[int, int], Report]] = []
        self.tokens, self.limits = TOKENS, Limits.of(ServiceSettings())
        self.server = WorkerServer(self)
        recorder = MemoryRecorder(lambda entry: None)
        scheduler = Scheduler(Cluster(), create("fifo"))
        deps = EngineDeps(
            store=recorder, recorder=recorder, launcher=NO_LAUNCHER, clock=Clock(),
            tokens=TOKENS, url=self.server.url, checkpoints="", on_report=self._hear,
        )  # fmt: skip
        self.engine = LiveEngine(scheduler, deps)
        self.job = LiveJob(JobId("j"), Submission(name="j", argv=("-",), cwd="/"))
        self.job.workers[LAUNCH] = LiveWorker(LAUNCH, (Gpu(NodeId("n"), 0),), 1)
        self.engine.live.jobs[self.job.id] = self.job
        self._loop = threading.Thread(target=drive, args=(scheduler, self.engine, recorder))

    def open(self) -> None:
        self._loop.start()
        self.server.open()

    def close(self) -> None:
        self.server.close()
        self.engine.stop()
        self._loop.join()

    def order(self, order: Order) -> None:
        self.engine.live.mailbox.put(LAUNCH, order)

    def report(self, message: Reports, done: Done) -> None:
        self.engine.report(message, done)

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
    token = options.pop("token", TOKENS.of("j"))
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
    controller.open()
    mine = client(controller.server.url)
    for number in range(50):
        mine.report(epoch(number))
    assert mine.flush(60)
    mine.stop()
    controller.close()
    assert controller.reports == [epoch(number) for number in range(50)]


def test_a_report_that_is_refused_is_left_out_and_the_others_arrive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = Controller()
    mine = client(controller.server.url)
    reports = [epoch(1), epoch(2), Epoch(epoch=3, steps=-1, samples=1), epoch(4), epoch(5)]
    for report in reports:
        mine.report(report)
    controller.open()
    assert mine.flush(60)
    mine.stop()
    controller.close()
    assert controller.reports == [epoch(1), epoch(2), epoch(4), epoch(5)]
    assert "the controller refused a report (Epoch)" in caplog.text


def test_reports_keep_their_generation() -> None:
    controller = Controller()
    mine = client(controller.server.url)  # there is no server yet
    mine.report(epoch(1))
    mine.generation = (2, 1)
    mine.report(epoch(2))
    controller.open()
    assert mine.flush(60)
    mine.stop()
    controller.close()
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
    controller.open()
    assert mine.flush(60)
    mine.stop()
    controller.close()
    assert controller.reports[-1] == Ready()
    assert Steps(epoch=1, steps=4, samples=4) in controller.reports
    assert len(controller.reports) < 6  # counts replace one another


def test_a_controller_that_dies_in_the_middle_of_an_answer_loses_nothing() -> None:
    controller = Controller()
    controller.open()
    controller.order(Withdraw(7, 6))
    orders: list[Order] = []
    with CuttingProxy(controller.server.url) as proxy:
        mine = client(proxy.url, on_order=orders.append)
        for number in range(3):
            mine.report(epoch(number))
            assert mine.flush(60)
        eventually(lambda: orders == [Withdraw(7, 6)])
        mine.stop()
    controller.close()
    assert controller.reports == [epoch(number) for number in range(3)]
    assert len(proxy.cut) >= 3


def test_an_order_comes_once_and_at_once() -> None:
    controller = Controller()
    controller.open()
    orders: list[Order] = []
    stores: list[str] = []
    mine = client(controller.server.url, on_order=orders.append, on_store=stores.append)
    mine.report(Ready())
    assert mine.flush(60)
    controller.job.store = "h:1:2"
    controller.order(Withdraw(7, 6))
    eventually(lambda: orders == [Withdraw(7, 6)])
    mine.report(Ready())
    assert mine.flush(60)
    controller.order(Withdraw(9, 8))
    eventually(lambda: len(orders) == 2)
    mine.stop()
    controller.close()
    assert orders == [Withdraw(7, 6), Withdraw(9, 8)]
    assert stores[-1] == "h:1:2"


def test_a_worker_without_a_place_is_told() -> None:
    controller = Controller()
    controller.engine.live.jobs.clear()
    controller.open()
    fenced = threading.Event()
    mine = client(controller.server.url, on_fenced=fenced.set)
    mine.report(Ready())
    assert fenced.wait(60)
    mine.stop()
    controller.close()
    assert controller.reports == []


def test_a_wrong_token_is_not_heard() -> None:
    controller = Controller()
    controller.open()
    mine = client(controller.server.url, token="guessed")
    mine.report(Ready())
    assert not mine.flush(0.5)
    mine.stop()
    controller.close()
    assert controller.reports == []


# a controller that is away when the worker ends


def ending(url: str, run_dir: Path) -> ControllerClient:
    made = ControllerClient(
        replace(environment(url, TOKENS.of("j")), run_dir=str(run_dir)),
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
    controller.open()
    mine = ending(controller.server.url, tmp_path)
    mine.report(epoch(1))
    assert mine.flush(60)
    controller.close()
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
    controller.open()
    mine = ending(controller.server.url, tmp_path)
    mine.report(epoch(1))
    mine.close(60)
    controller.close()
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
