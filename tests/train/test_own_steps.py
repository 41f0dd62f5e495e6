"""A worker's own part of its steps, without the time in which it waits for the others."""

from __future__ import annotations

from pathlib import Path

import torch

from ones.train.own_steps import OwnStepTimer
from ones.wire.samples import OWN_STEPS, OwnSteps, own_steps_of
from tests.train.elastic import elastic


class Timed:
    def __init__(self, run_dir: Path) -> None:
        self.now, self.file = 0.0, run_dir / OWN_STEPS
        self.timer = OwnStepTimer(torch.device("cpu"), str(run_dir), lambda: self.now)

    def steps(self, count: int, own: float, waits: float = 1.0, samples: int = 32) -> None:
        for _ in range(count):
            self.now += own
            self.timer.wait_begins()
            self.now += waits
            self.timer.wait_ends(samples)

    def written(self) -> OwnSteps | None:
        if self.timer._writer is not None:
            self.timer._writer.join()
        return own_steps_of(self.file.read_bytes()) if self.file.exists() else None


def test_waiting_for_others_does_not_count(tmp_path: Path) -> None:
    timed = Timed(tmp_path)
    timed.steps(20, own=0.5, waits=9.0)
    assert timed.written() is None  # the first step has no begin: 19 are timed
    timed.steps(1, own=100.0)  # one step that took long is not its speed
    assert timed.written() == OwnSteps(seconds=0.5, samples=32.0)


def test_after_the_first_steps_it_is_written_now_and_then(tmp_path: Path) -> None:
    timed = Timed(tmp_path)
    timed.steps(21, own=0.5, waits=0.0)
    timed.steps(29, own=1.0, waits=0.0)
    assert timed.written() == OwnSteps(seconds=0.5, samples=32.0)
    timed.steps(1, own=1.0, waits=0.0)
    assert timed.written() == OwnSteps(seconds=1.0, samples=32.0)
    timed.steps(2, own=100.0, waits=0.0)  # fewer than three
    assert timed.written() == OwnSteps(seconds=1.0, samples=32.0)


def test_steps_of_another_layout_and_after_other_work_are_not_mixed(tmp_path: Path) -> None:
    timed = Timed(tmp_path)
    timed.steps(19, own=0.5)
    timed.timer.reset()
    timed.steps(10, own=0.25, samples=16)
    timed.timer.forget_step()
    timed.now += 1000.0  # the script evaluates
    timed.steps(12, own=0.25, samples=16)
    assert timed.written() == OwnSteps(seconds=0.25, samples=16.0)


def test_a_directory_that_cannot_be_written_to_costs_nothing(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "gone")
    timed.steps(100, own=1.0)
    assert timed.written() is None
    OwnStepTimer(torch.device("cpu"), "").wait_ends(1)


def test_a_slow_worker_is_told_from_the_one_that_waits_for_it(zygote: str, tmp_path: Path) -> None:
    nap = 0.06
    job = elastic(zygote, tmp_path, "0:2", NAP=nap, SLOW="local-1")
    job.play()
    found = {
        path.parent.name.rpartition(".")[2]: own_steps_of(path.read_bytes())
        for path in tmp_path.glob(f"forks/*/{OWN_STEPS}")
    }
    assert found["1"].seconds >= nap
    assert found["0"].seconds < found["1"].seconds
    assert {steps.samples for steps in found.values()} == {8.0}
