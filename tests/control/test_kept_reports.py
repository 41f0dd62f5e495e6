"""What a worker left on disk is heard once, before its exit, and is believed no more than HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ones.core import events as ev
from ones.core.job import JobId
from ones.exec import Exit
from ones.launchers import Exited
from ones.wire import messages as wire
from ones.wire import pack
from ones.wire.environment import KEPT_REPORTS, MOST_KEPT_BYTES
from tests.control.by_hand import JOINED, ByHand

A, B = JobId("a-1"), JobId("b-2")


def epoch(number: int, accuracy: float = 0.5) -> wire.Epoch:
    return wire.Epoch(epoch=number, steps=5, samples=10, loss=1.0, accuracy=accuracy)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ByHand]:
    bench = ByHand(tmp_path)
    for job in (A, B):
        bench.submit(job)
    yield bench
    bench.close()


def kinds(events: list[ev.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_they_are_told_before_the_exit_and_those_heard_before_are_not_told_again(
    bench: ByHand,
) -> None:
    before = bench.reports(A, 1, JOINED, wire.Ready(), epoch(1, 0.1))
    bench.engine.reports.handle(before, lambda problem: None)
    bench.turn()
    bench.turn()
    bench.keep(
        A,
        bench.reports(A, 2, wire.Ready(), epoch(1, 0.1), epoch(2, 0.2)),
        bench.reports(A, 5, epoch(3, 0.9), wire.Leaving(done=True)),
    )
    events = bench.exit(A)
    assert kinds(events) == ["EpochFinished", "EpochFinished", "JobEnded", "WorkerLeft"]
    outcome = bench.scheduler.state.ended[A]
    assert (outcome.epochs, outcome.accuracy, outcome.reason) == (3, 0.9, "finished")


def test_of_a_job_that_failed_the_last_epochs_are_shown_too(bench: ByHand) -> None:
    bench.keep(A, bench.reports(A, 1, JOINED, wire.Ready(), epoch(1), epoch(2)))
    bench.engine.on_launcher(Exited(bench.launch(A), Exit(code=1, at=0.0, cause="exited")))
    events = bench.turn()
    assert kinds(events).index("WorkerLost") > kinds(events).index("EpochFinished")
    assert bench.scheduler.state.ended[A].epochs == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda bench: b"[" * 100_000,
        lambda bench: b"\xff\x00\n",
        lambda bench: b'{"type": "Orders", "acknowledged": 1}',
        lambda bench: pack(bench.reports(B, 1, JOINED, epoch(7))),
        lambda bench: pack(bench.reports(A, 1, epoch(7), worker="n0/1")),
        lambda bench: pack(bench.reports(A, 1, epoch(7), worker="n0/x")),
        lambda bench: pack(bench.reports(A, 1, epoch(7), plan=0)),
        lambda bench: json.dumps({"type": "Reports", "job": A, "first": "x"}).encode(),
        lambda bench: pack(bench.reports(A, 1, *[epoch(7)] * 20)) + b" " * MOST_KEPT_BYTES,
    ],
)
def test_what_is_not_of_this_worker_is_refused_and_the_exit_is_told(
    make: Callable[[ByHand], bytes], bench: ByHand
) -> None:
    (bench.folder(A) / KEPT_REPORTS).write_bytes(make(bench))
    assert "EpochFinished" not in kinds(bench.exit(A))
    assert A in bench.scheduler.state.ended
    assert B in bench.scheduler.state.records
    assert bench.scheduler.state.records[B].epochs == 0


def test_a_link_is_not_followed(bench: ByHand, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(pack(bench.reports(A, 1, JOINED, epoch(7))))
    (bench.folder(A) / KEPT_REPORTS).symlink_to(tmp_path / "other")
    assert "EpochFinished" not in kinds(bench.exit(A))
