"""`ones.progress`: what a fixed-size job reports, and from which rank."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ones
from ones.errors import UserError
from ones.train import fixed_progress
from ones.train.fixed_progress import ProgressReporter
from ones.wire import Reports, pack, unpack
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Epoch, Report, Steps

HERE = WorkerEnvironment(
    controller="http://127.0.0.1:1", token="secret", job="a-1", worker="n0/0", plan=3,
    run_dir="", job_dir="", checkpoints="/c",
)  # fmt: skip


def told(calls: list[tuple[int, int]], *, seconds: float = 1.0) -> list[Report]:
    reports: list[Report] = []
    now = 0.0
    reporter = ProgressReporter(reports.append, lambda: now)
    for step, total in calls:
        now += seconds
        reporter.done(step, total)
    return reports


def test_a_twentieth_of_the_total_is_an_epoch() -> None:
    reports = told([(step, 100) for step in range(1, 101)])
    epochs = [r for r in reports if isinstance(r, Epoch)]
    assert [e.epoch for e in epochs] == list(range(1, 21))
    assert {e.planned_epochs for e in epochs} == {20}
    assert [e.steps for e in epochs] == [4] + [5] * 19  # measured from the first call
    assert {e.step_seconds for e in epochs} == {1.0}
    first = reports[0]
    assert isinstance(first, Steps)
    assert (first.epoch, first.steps, first.planned_epochs) == (1, 0, 20)


def test_few_steps_are_one_epoch_each_and_a_resumed_script_continues_its_count() -> None:
    assert [r.epoch for r in told([(1, 3), (2, 3), (3, 3)]) if isinstance(r, Epoch)] == [1, 2, 3]
    first, last = told([(81, 100), (85, 100)])
    assert isinstance(first, Steps)
    assert isinstance(last, Epoch)
    assert (first.epoch, last.epoch, last.steps) == (17, 17, 4)


def test_calls_in_quick_succession_are_one_report() -> None:
    assert len(told([(step, 10**6) for step in range(1, 1000)], seconds=0.001)) == 2


@given(
    st.lists(st.tuples(st.integers(0, 2**53), st.integers(1, 2**53)), max_size=20),
    st.sampled_from([0.0, 1e-12, 0.3, 1e9]),
)
def test_whatever_is_called_the_reports_are_valid(
    calls: list[tuple[int, int]], seconds: float
) -> None:
    reports = told([(min(step, total), total) for step, total in calls], seconds=seconds)
    message = Reports(job="a-1", worker="n0/0", plan=1, first=1, reports=tuple(reports))
    assert unpack(pack(message)) == message


@pytest.mark.parametrize(("step", "total"), [(1, 0), (-1, 5), (2**60, 5)])
def test_a_wrong_number_is_named_with_or_without_the_service(step: int, total: int) -> None:
    with pytest.raises(UserError, match=rf"ones.progress\({step}, {total}\)"):
        ones.progress(step, total)


def test_only_the_first_rank_of_a_fixed_size_job_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert WorkerEnvironment.of_progress(HERE.to_env()) is None, "an elastic job reports by itself"
    assert WorkerEnvironment.from_env(HERE.to_progress_env()) is None, "it must not join"
    assert WorkerEnvironment.of_progress(HERE.to_progress_env()) == HERE
    assert fixed_progress._is_first_rank()
    monkeypatch.setenv("RANK", "1")
    assert not fixed_progress._is_first_rank()
    monkeypatch.setenv("RANK", "0")
    assert fixed_progress._is_first_rank()


def test_it_imports_no_torch_and_has_no_effect_outside_ones() -> None:
    script = (
        "import sys, threading, ones; ones.progress(1, 9);"
        " print('torch' in sys.modules, threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["False", "1"]
