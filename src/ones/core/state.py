"""State: a fold over the run log. Events and plans go in, views and orders come out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ones.core import fold, orders
from ones.core.cluster import Cluster, Gpu, Node
from ones.core.events import Event
from ones.core.job import JobId, SwitchCost
from ones.core.plan import Action, Change, Plan
from ones.core.record import JobRecord, Outcome
from ones.core.tables import Occupant, Tables
from ones.wire.bounds import Tagged


class State(Tables):
    """The one mutable object of a scheduler. Change it by `apply` and `adopt` only."""

    def __init__(self, cluster: Cluster, switch_cost: SwitchCost = SwitchCost()) -> None:
        super().__init__(cluster, switch_cost)

    def apply(self, event: Event) -> bool:
        """Something happened. False if it was of no account: late, double or of nobody known."""
        return fold.apply(self, event)

    def adopt(self, plan: Plan) -> None:
        """A plan is in force, fresh from a decision or read from the log."""
        orders.adopt(self, plan)

    def due_orders(self) -> list[Action]:
        return orders.due_orders(self)

    def orders_for(self, changes: Iterable[Change]) -> list[Action]:
        return orders.orders_for(self, changes)

    def snapshot(self, *, ended_before: int = 0) -> Snapshot:
        """All of it as values. The ended jobs are those after the first `ended_before`:
        earlier ones have been written once and are not written again."""
        return Snapshot(
            now=self.now,
            booked_at=self.booked_at,
            plan_number=self.plan_number,
            submitted=self.submitted,
            switch_cost=self.switch_cost,
            nodes=tuple(self.cluster.nodes.values()),
            records=tuple(self.records.values()),
            occupants=tuple(self.occupants.items()),
            limits=dict(self.waiting.limits),
            due=tuple(self.due),
            dropped=dict(self.dropped),
            busy_gpu_seconds=self.busy_gpu_seconds,
            capacity_gpu_seconds=self.capacity_gpu_seconds,
            ended=tuple(islice(self.ended.values(), ended_before, None)),
        )

    @classmethod
    def restored(cls, saved: Snapshot, ended_earlier: Iterable[Outcome] = ()) -> State:
        """The state that gave this snapshot; indexes are made anew."""
        state = cls(Cluster(list(saved.nodes)), saved.switch_cost)
        state.now = saved.now
        state.booked_at = saved.booked_at
        state.busy_gpu_seconds = saved.busy_gpu_seconds
        state.capacity_gpu_seconds = saved.capacity_gpu_seconds
        state.plan_number = saved.plan_number
        for owner, limit in saved.limits.items():
            state.waiting.limit(owner, limit)
        for outcome in (*ended_earlier, *saved.ended):
            state.ended[outcome.id] = outcome
        for record in saved.records:
            goal, record.goal = record.goal, None
            state.add(record)
            state.set_goal(record, goal)
            state.enqueue(record)
        state.submitted = saved.submitted
        state.occupants = dict(saved.occupants)
        state.due = dict.fromkeys(saved.due)
        state.dropped = dict(saved.dropped)
        state.requeued = False
        return state


class Snapshot(Tagged, frozen=True, kw_only=True):
    """State as plain values. Holds the records themselves: write it out before the next event."""

    now: float
    booked_at: float
    plan_number: int
    submitted: int
    switch_cost: SwitchCost
    nodes: tuple[Node, ...]
    records: tuple[JobRecord, ...]
    occupants: tuple[tuple[Gpu, Occupant], ...]
    limits: dict[str, int]
    due: tuple[JobId, ...]
    dropped: dict[str, int]
    busy_gpu_seconds: float
    capacity_gpu_seconds: float
    ended: tuple[Outcome, ...]
