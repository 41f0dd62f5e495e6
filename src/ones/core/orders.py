"""The orders that a state calls for, and what a plan changes once it is adopted.

`due_orders` and `orders_for` look and do not touch; `adopt` touches and does not
choose: it reads nothing but the plan's actions. So a recorded plan and a fresh one
take the same way into the state, and recovery never decides anything again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from ones.core.cluster import Gpu
from ones.core.job import Generation, JobId
from ones.core.plan import (
    Action,
    Change,
    Finish,
    Plan,
    Prepare,
    Rescale,
    Start,
    Stop,
    Withdraw,
    next_stroke,
)
from ones.core.record import InFlight, JobRecord, OrderKind
from ones.core.schedule import Allocation
from ones.core.tables import Tables
from ones.errors import BrokenEngineError


def due_orders(tables: Tables) -> list[Action]:
    """Orders that need no decision: ends, second strokes, and word of what will not come."""
    actions: list[Action] = []
    for job in tables.due:
        record = tables.records[job]
        if record.ending is not None:
            if not record.ending.ordered:
                actions.append(Finish(job, record.ending.reason, record.ending.message))
            continue
        if record.withdrawn:
            actions.append(Withdraw(job))
        if record.in_flight is None and not record.reforming:
            stroke = _stroke(tables, record, record.goal, {})
            if stroke is not None:
                actions.append(stroke)
    return actions


def orders_for(tables: Tables, changes: Iterable[Change]) -> list[Action]:
    """The orders with which a decision's changes begin."""
    changes = tuple(changes)
    claims: dict[Gpu, JobId] = {}
    for change in changes:
        if change.after is not None:
            claims.update(dict.fromkeys(change.after.gpus, change.job))
    actions: list[Action] = []
    for change in changes:
        stroke = _stroke(tables, tables.records[change.job], change.after, claims)
        reaches_it = isinstance(stroke, Start | Rescale) and stroke.allocation == change.after
        if change.after is not None and not reaches_it:
            actions.append(Prepare(change.job, change.after))
        if stroke is not None:
            actions.append(stroke)
    return actions


def _stroke(
    tables: Tables, record: JobRecord, goal: Allocation | None, claims: dict[Gpu, JobId]
) -> Action | None:
    job = record.id

    def is_claimed(gpu: Gpu) -> bool:
        claimant = claims.get(gpu) or tables.assigned.get(gpu)
        return claimant is not None and claimant != job

    return next_stroke(
        job,
        record.held,
        goal,
        # one's own worker that is leaving is in the way, too
        is_free=lambda gpu: gpu not in tables.occupants,
        is_claimed=is_claimed,
        base_batch=record.description.base_batch if record.description else None,
        local_limit=record.local_limit(),
        in_place=tables.in_place,
    )


def adopt(tables: Tables, plan: Plan) -> None:
    """Take a plan for true: the engine has it, or is about to get it."""
    tables.version += 1
    if plan.actions:
        tables.plan_number = plan.number
    prepared = {a.job for a in plan.actions if isinstance(a, Prepare)}
    for action in plan.actions:
        if action.job not in tables.records:
            raise BrokenEngineError(f"plan {plan.number} is for {action.job}, which is not there")
        tables.due.pop(action.job, None)
        _take_for_true(tables, action, plan.number, aims_further=action.job in prepared)
    for job, note in plan.notes.items():
        tables.touch(job).note = note
    for job, forecast in plan.forecasts.items():
        tables.touch(job).forecast = forecast


def _take_for_true(tables: Tables, action: Action, plan: int, *, aims_further: bool) -> None:
    """`aims_further`: the same plan prepares the job for more than this action gives it."""
    record = tables.touch(action.job)
    match action:
        case Prepare():
            tables.set_goal(record, action.allocation)
        case Withdraw():
            record.withdrawn = False
        case Start():
            tables.set_goal(record, action.allocation)
            record.in_flight = InFlight(OrderKind.START, plan, action.allocation)
            record.generation = Generation(plan)
            record.ready.clear()
            _send(tables, record, action.allocation, plan)
        case Rescale():
            if not aims_further:
                tables.set_goal(record, action.allocation)
            record.in_flight = InFlight(OrderKind.RESCALE, plan, action.allocation)
            _send(tables, record, action.allocation, plan)
        case Stop():
            if not aims_further:
                tables.set_goal(record, None)
            record.in_flight = InFlight(OrderKind.STOP, plan)
        case Finish():
            tables.set_goal(record, None)
            if record.ending is not None:
                record.ending = replace(record.ending, ordered=True)
            record.in_flight = InFlight(OrderKind.STOP, plan)
        case _:
            assert_never(action)


def _send(tables: Tables, record: JobRecord, allocation: Allocation, plan: int) -> None:
    for gpu in allocation.gpus:
        if gpu not in record.occupied:
            tables.occupy(record, gpu, plan)
