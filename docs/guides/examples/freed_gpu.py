"""A job ends, and the next one gets its GPUs when their workers have left, not before."""

from __future__ import annotations

from ones.core import (
    Cluster,
    EndReason,
    Generation,
    Gpu,
    Job,
    JobId,
    NodeId,
    Plan,
    Scheduler,
    ScriptedEngine,
    drive,
)
from ones.core import events as ev
from ones.policies import create

A, B = JobId("a"), JobId("b")
FIRST, SECOND = Gpu(NodeId("n0"), 0), Gpu(NodeId("n0"), 1)


def newest(plans: list[Plan]) -> Generation:
    """The generation with which the orders of the last plan are answered."""
    return Generation(plans[-1].number)


engine = ScriptedEngine(
    [
        ev.JobSubmitted(0.0, Job(id=A, submitted_at=0.0, requested_gpus=2)),
        # a function of the plans so far, because the script does not know their numbers
        lambda plans: ev.WorkerReady(5.0, A, newest(plans), FIRST),
        lambda plans: ev.WorkerReady(5.0, A, newest(plans), SECOND),
        ev.JobSubmitted(6.0, Job(id=B, submitted_at=6.0, requested_gpus=2)),
        ev.JobEnded(9.0, A, EndReason.FINISHED, generation=Generation(1)),
        ev.WorkerLeft(9.1, A, Generation(1), FIRST),
        ev.WorkerLeft(9.3, A, Generation(1), SECOND),
    ]
)
drive(Scheduler(Cluster.of(2), create("fifo")), engine, record=lambda entry: None)

for plan in engine.plans:
    orders = ", ".join(f"{type(action).__name__} {action.job}" for action in plan.actions)
    print(f"{plan.at:4.1f} s  plan {plan.number}: {orders}")
