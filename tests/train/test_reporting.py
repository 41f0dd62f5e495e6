"""What rank 0 reports between two epochs, and how often."""

from __future__ import annotations

import pytest
import torch

from ones.control.live.report_events import event_of
from ones.core.cluster import Gpu, NodeId
from ones.core.events import MemoryLimitLearned
from ones.core.job import Generation, JobId
from ones.train.layout import GroupLayout
from ones.train.progress import TrainingProgress
from ones.train.reporting import Reporter
from ones.wire.messages import Member, Memory, Report, Speed, Steps


class TimedReporter:
    """A reporter under a clock of its own, and what it has reported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("ones.train.reporting.time.monotonic", lambda: self.now)
        monkeypatch.setattr("ones.train.reporting.time.perf_counter", lambda: self.now)
        self.sent: list[Report] = []
        self.layout = layout_of(8)
        self.reporter = Reporter(self.sent.append)

    def steps(self, count: int, seconds: float, *, is_disturbed: bool = False) -> None:
        for _ in range(count):
            self.now += seconds
            self.reporter.after_step(self.layout, TrainingProgress(), 0, is_disturbed=is_disturbed)

    def switch(self, batch: int) -> None:
        """As the training loop does it."""
        self.reporter.report_speed(self.layout)
        self.layout = layout_of(batch)
        self.reporter.reset(self.layout)

    def speeds(self) -> list[tuple[int, int, float]]:
        """Batch, steps and seconds of a step of each report."""
        found = [report for report in self.sent if isinstance(report, Speed)]
        return [(report.batch, report.steps, round(report.step_seconds, 6)) for report in found]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> TimedReporter:
    return TimedReporter(monkeypatch)


def layout_of(batch: int) -> GroupLayout:
    return GroupLayout(plan=1, incarnation=0, members=(Member(worker="n0/0", batch=batch),))


def test_the_first_speed_is_that_of_twenty_steps_after_the_slow_ones(timed: TimedReporter) -> None:
    timed.steps(3, 5.0)  # the first one is not timed, two are left out
    timed.steps(19, 0.1)
    assert timed.speeds() == []
    timed.steps(1, 0.1)
    assert timed.speeds() == [(8, 20, 0.1)]
    timed.steps(105, 0.1)
    assert [steps for _, steps, _ in timed.speeds()] == pytest.approx([20, 100], abs=1)


def test_what_was_measured_before_a_change_is_reported(timed: TimedReporter) -> None:
    timed.steps(3 + 12, 0.1)
    timed.switch(16)
    assert timed.speeds() == [(8, 12, 0.1)]
    timed.steps(3 + 20, 0.3)
    assert timed.speeds()[1:] == [(16, 20, 0.3)]


def test_a_few_steps_are_no_measurement_whenever_the_last_report_was(timed: TimedReporter) -> None:
    timed.steps(3 + 50, 0.1)
    timed.now += 60.0
    timed.switch(16)
    before = len(timed.speeds())
    timed.steps(3 + 4, 0.1)
    timed.reporter.report_speed(timed.layout)  # the end of an epoch
    assert len(timed.speeds()) == before
    timed.steps(1, 0.1)
    timed.reporter.report_speed(timed.layout)
    assert timed.speeds()[before:] == [(16, 5, 0.1)]


def test_a_step_of_many_seconds_is_a_measurement(timed: TimedReporter) -> None:
    timed.steps(3 + 1, 15.0)
    assert timed.speeds() == [(8, 1, 15.0)]


def test_steps_that_also_send_state_or_save_do_not_count(timed: TimedReporter) -> None:
    timed.steps(3 + 10, 0.1)
    timed.steps(5, 0.9, is_disturbed=True)
    timed.steps(10, 0.1)
    assert timed.speeds() == [(8, 20, 0.1)]
    assert timed.reporter.take_epoch_step_seconds() == pytest.approx(0.1)


def test_the_step_time_of_an_epoch_is_that_of_its_last_layout(timed: TimedReporter) -> None:
    timed.steps(3 + 10, 0.1)
    timed.switch(16)
    timed.steps(3, 2.0)
    timed.steps(10, 0.4)
    assert timed.reporter.take_epoch_step_seconds() == pytest.approx(0.4)
    assert timed.reporter.take_epoch_step_seconds() is None


def test_gradient_noise_is_reported_once_a_minute_however_long_the_epoch_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr("ones.train.reporting.time.monotonic", lambda: clock)
    sent: list[Report] = []
    layout = layout_of(8)
    reporter = Reporter(sent.append)
    for second in range(1, 182):
        clock = float(second)
        noise = None if second < 90 else float(second)  # known late
        reporter.after_step(layout, TrainingProgress(), 0, noise)
    steps = [report for report in sent if isinstance(report, Steps)]
    assert len(steps) == 181
    assert [s.gradient_noise for s in steps if s.gradient_noise is not None] == [90.0, 150.0]


def test_the_first_step_with_other_workers_is_compared_with_a_plain_one(
    timed: TimedReporter,
) -> None:
    def extras() -> list[float | None]:
        speeds = [report for report in timed.sent if isinstance(report, Speed)]
        return [report.first_step_extra_seconds for report in speeds]

    def switch(workers: int, incarnation: int = 0) -> None:
        members = tuple(Member(worker=f"n0/{i}", batch=8) for i in range(workers))
        timed.layout = GroupLayout(plan=2, incarnation=incarnation, members=members)
        timed.reporter.reset(timed.layout)
        timed.steps(1, 0.9)
        timed.steps(22, 0.1)

    switch(1)  # a start
    switch(2)
    switch(2)  # only the batch
    switch(1, incarnation=1)  # after a loss
    switch(3)
    assert extras() == [None, pytest.approx(0.8), None, None, pytest.approx(0.8)]


class DeviceMemory:
    """The module of a device with 1,000 bytes in use, 100 more for each sample, and a total."""

    total = 10_000
    samples = 0

    def max_memory_allocated(self, device: object) -> int:
        return 1_000 + 100 * self.samples

    def reset_peak_memory_stats(self, device: object) -> None: ...

    def memory_reserved(self, device: object) -> int:
        return 1_000

    def mem_get_info(self, device: object) -> tuple[int, int]:
        return self.total - 1_000, self.total


def test_a_memory_limit_is_reported_when_memory_gets_low(
    timed: TimedReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 samples take 9,000 of 10,000 bytes, of which a tenth is left free."""
    device = DeviceMemory()
    monkeypatch.setattr("ones.train.memory.module_of", lambda _: device)
    known: list[int | None] = [None]
    timed.reporter = Reporter(timed.sent.append, torch.device("meta"), lambda: known[0])
    for device.samples in (8, 16, 64, 32, 24):
        if device.samples == 24:
            known[0] = 40  # memory ran out with more
        timed.switch(device.samples)
        for _ in range(30):
            timed.now += 0.1
            timed.reporter.after_step(timed.layout, TrainingProgress(), device.samples)
    reports = [report for report in timed.sent if isinstance(report, Memory)]
    found = [(r.micro_batch, r.peak_bytes, r.max_local_batch) for r in reports]
    assert found == [
        (8, 1_800, None),
        (16, 2_600, None),
        (64, 7_400, 80),
        (32, 4_200, 80),
        (24, 3_400, 40),
    ]
    where = JobId("a"), Gpu(NodeId("n0"), 0), Generation(1), None
    event = event_of(reports[2], *where)
    assert isinstance(event, MemoryLimitLearned)
    assert event.max_local_batch == 80
    assert event_of(reports[1], *where) is None
