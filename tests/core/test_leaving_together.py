"""Workers that leave at the same time may be reported in any order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import (
    Allocation,
    Cluster,
    EndReason,
    Generation,
    Gpu,
    Job,
    JobId,
    NodeId,
    Plan,
    Scheduler,
)
from ones.core import events as ev
from ones.core.actions import adopt
from ones.core.plan import Start
from ones.policies import create
from ones.testing.invariants import check_invariants

FIRST = Generation(1)
SHRUNK, WAITING = JobId("shrunk"), JobId("waiting")
JOBS = {
    JobId("a"): range(3), JobId("b"): range(3, 5), SHRUNK: range(5, 8),
}  # fmt: skip
#: two jobs have ended; of the third, two workers of three are stopped from outside
LEAVING = [(JobId("a"), i) for i in range(3)] + [(JobId("b"), i) for i in (3, 4)]
LEAVING += [(SHRUNK, i) for i in (5, 7)]


def gpu(index: int) -> Gpu:
    return Gpu(NodeId(f"n{index // 4}"), index % 4)


def decided(order: list[tuple[JobId, int]]) -> list[Plan]:
    """The plans after the workers have left in this order, the last by the policy `ones`."""
    scheduler = Scheduler(Cluster.of(8), create("ones", seed=1))

    def tell(event: ev.Event) -> Plan:
        plan = scheduler.handle(event, decide=False)
        check_invariants(scheduler.state)
        return plan

    for name in JOBS:
        tell(ev.JobSubmitted(0.0, Job(id=name, submitted_at=0.0, kind="k")))
    allocations = {name: Allocation.as_scripted(map(gpu, on)) for name, on in JOBS.items()}
    starts = tuple(Start(name, allocation) for name, allocation in allocations.items())
    adopt(scheduler.state, Plan(number=1, at=0.0, actions=starts))
    for name, on in JOBS.items():
        for index in on:
            tell(ev.WorkerReady(1.0, name, FIRST, gpu(index)))
        tell(
            ev.JobDescribed(
                at=1.0, job=name, generation=FIRST, dataset_size=1000, base_batch=64,
                max_local_batch=64,
            )
        )  # fmt: skip
    for i in range(4):
        waiting = JobId(f"{WAITING}-{i}")
        tell(ev.JobSubmitted(2.0, Job(id=waiting, submitted_at=2.0, kind="k" if i % 2 else "")))
    for ended in ("a", "b"):
        tell(ev.JobEnded(60.0, JobId(ended), EndReason.FINISHED, generation=FIRST))
    plans = [tell(ev.WorkerLeft(60.0, name, FIRST, gpu(index))) for name, index in order]
    return [*(plan for plan in plans if plan.actions), scheduler.handle(ev.Woke(60.0))]


@settings(max_examples=25, deadline=None)
@given(st.permutations(LEAVING))
def test_the_plan_is_the_same_in_whatever_order_they_leave(order: list[tuple[JobId, int]]) -> None:
    plans = decided(order)
    assert plans == decided(LEAVING)
    assert sum(isinstance(action, Start) for action in plans[-1].actions) >= 3
