"""What rank 0 reports between two epochs, and how often."""

from __future__ import annotations

import pytest

from ones.train.layout import GroupLayout
from ones.train.progress import TrainingProgress
from ones.train.reporting import Reporter
from ones.wire.messages import Member, Report, Steps


def test_gradient_noise_is_reported_once_a_minute_however_long_the_epoch_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr("ones.train.reporting.time.monotonic", lambda: clock)
    sent: list[Report] = []
    layout = GroupLayout(plan=1, incarnation=0, members=(Member(worker="n0/0", batch=8),))
    reporter = Reporter(sent.append)
    for second in range(1, 182):
        clock = float(second)
        noise = None if second < 90 else float(second)  # known late
        reporter.after_step(layout, TrainingProgress(), 0, noise)
    steps = [report for report in sent if isinstance(report, Steps)]
    assert len(steps) == 181
    assert [s.gradient_noise for s in steps if s.gradient_noise is not None] == [90.0, 150.0]
