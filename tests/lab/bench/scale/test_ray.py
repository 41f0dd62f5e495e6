"""Times of starts and rescales from a run log."""

from __future__ import annotations

from ones.core import Allocation, Gpu, JobId, NodeId, Plan
from ones.core import events as ev
from ones.core.job import Generation
from ones.core.plan import Rescale, Start
from ones.lab.bench.scale.ray import times_in


def test_what_a_run_took_is_read_from_its_log() -> None:
    a, b, n0 = JobId("a"), JobId("b"), NodeId("n0")
    one, two = Gpu(n0, 0), Gpu(n0, 1)

    def on(*gpus: Gpu) -> Allocation:
        return Allocation.even(gpus, 8)

    log: list[ev.Event | Plan] = [
        Plan(number=1, at=10.0, actions=(Start(a, on(one, two)),)),
        ev.WorkerReady(11.0, a, Generation(1), one),
        ev.WorkerReady(12.5, a, Generation(1), two),
        Plan(number=2, at=20.0, actions=(Rescale(a, on(one)), Start(b, on(two)))),
        ev.Rescaled(21.0, a, Generation(2), 0.25),
        ev.WorkerReady(24.0, b, Generation(2), two),
        ev.Rescaled(30.0, a, Generation(2, 1), 9.0),  # after a loss, without an order
    ]
    assert times_in(log) == ([2.5, 4.0], [1.0], [0.25])
