"""Turns the scheduler's state and decisions into actions, and applies plans to the state.

`due_actions` and `first_actions` do not change the state. `adopt` changes it by the plan's actions
and decides nothing, so a recorded plan and a new one change the state in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from ones.core.cluster import Gpu
from ones.core.failures import end_soon
from ones.core.job import Generation, JobId
from ones.core.lifecycle import OrderKind, Phase, Trigger
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
    next_step,
)
from ones.core.record import InFlight, JobRecord
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.errors import BrokenEngineError


def due_actions(state: State) -> list[Action]:
    """Actions that follow without asking the policy: `Finish` for jobs with a decided end, the
    second step of a move, and `Withdraw` for announced allocations that cannot happen any more."""
    actions: list[Action] = []
    for job in state.due:
        record = state.records[job]
        if record.ending is not None:
            if not record.ending.ordered:
                actions.append(Finish(job, record.ending.reason, record.ending.message))
            continue
        if record.withdraw_due:
            actions.append(Withdraw(job))
        if record.in_flight is None and not record.reforming:
            step = _next_step(state, record, record.goal, {})
            if step is not None:
                actions.append(step)
    return actions


def first_actions(state: State, changes: Iterable[Change]) -> list[Action]:
    """The actions with which a decision's changes begin."""
    changes = tuple(changes)
    claims: dict[Gpu, JobId] = {}
    for change in changes:
        if change.after is not None:
            claims.update(dict.fromkeys(change.after.gpus, change.job))
    actions: list[Action] = []
    for change in changes:
        step = _next_step(state, state.records[change.job], change.after, claims)
        reaches_it = isinstance(step, Start | Rescale) and step.allocation == change.after
        if change.after is not None and not reaches_it:
            actions.append(Prepare(change.job, change.after))
        if step is not None:
            actions.append(step)
    return actions


def _next_step(
    state: State, record: JobRecord, goal: Allocation | None, claims: dict[Gpu, JobId]
) -> Action | None:
    job = record.id

    def is_claimed(gpu: Gpu) -> bool:
        claimant = claims.get(gpu) or state.assigned.get(gpu)
        return claimant is not None and claimant != job

    return next_step(
        job,
        record.held,
        goal,
        # a leaving worker of the same job occupies its GPU, too
        is_free=lambda gpu: gpu not in state.occupants,
        is_claimed=is_claimed,
        base_batch=record.description.base_batch if record.description else None,
        local_limit=record.local_limit(),
        in_place=state.in_place,
    )


def adopt(state: State, plan: Plan) -> None:
    """Apply a plan: a new one before the engine gets it, or a recorded one during recovery."""
    state.version += 1
    if plan.actions:
        state.plan_number = plan.number
    prepared = {a.job for a in plan.actions if isinstance(a, Prepare)}
    for action in plan.actions:
        if action.job not in state.records:
            raise BrokenEngineError(
                f"plan {plan.number} is for {action.job}, which is not an unfinished job"
            )
        state.due.pop(action.job, None)
        _adopt_action(state, action, plan.number, goal_is_set=action.job in prepared)
    for job, note in plan.notes.items():
        state.touch(job).note = note
    for job, forecast in plan.forecasts.items():
        state.touch(job).forecast = forecast


def _adopt_action(state: State, action: Action, plan: int, *, goal_is_set: bool) -> None:
    """Apply one action of a plan. `goal_is_set`: a `Prepare` of the same plan has set the job's
    goal, and this action is the first step towards it."""
    record = state.touch(action.job)
    match action:
        case Prepare():
            state.set_goal(record, action.allocation)
            state.advance(record, Trigger.PROMISED)
        case Withdraw():
            record.withdraw_due = False
        case Start():
            state.set_goal(record, action.allocation)
            record.in_flight = InFlight(OrderKind.START, plan, action.allocation)
            record.generation = Generation(plan)
            record.ready.clear()
            _occupy(state, record, action.allocation, plan)
            state.advance(record, Trigger.START_ORDERED)
        case Rescale():
            if not goal_is_set:
                state.set_goal(record, action.allocation)
            record.in_flight = InFlight(OrderKind.RESCALE, plan, action.allocation)
            _occupy(state, record, action.allocation, plan)
            state.advance(record, Trigger.RESCALE_ORDERED)
        case Stop():
            if not goal_is_set:
                state.set_goal(record, None)
            record.in_flight = InFlight(OrderKind.STOP, plan)
            state.advance(record, Trigger.STOP_ORDERED)
        case Finish():
            if record.phase is not Phase.ENDING:  # the event that decided this end was quarantined
                end_soon(state, record, action.reason, action.message)
            state.set_goal(record, None)
            if record.ending is not None:
                record.ending = replace(record.ending, ordered=True)
            record.in_flight = InFlight(OrderKind.STOP, plan)
            state.advance(record, Trigger.STOP_ORDERED)
        case _:
            assert_never(action)


def _occupy(state: State, record: JobRecord, allocation: Allocation, plan: int) -> None:
    for gpu in allocation.gpus:
        if gpu not in record.occupied:
            state.occupy(record, gpu, plan)
