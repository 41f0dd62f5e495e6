"""State changes after the loss of workers or a failed order.

The remaining workers continue. If they are too few, they leave and the job waits. A start that lost
a worker is abandoned. A job that was promised GPUs loses the promise if another job keeps them. A
job fails once its workers died more often than its retries allow.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ones.core import reasons
from ones.core.cluster import Gpu
from ones.core.job import EndReason, Generation
from ones.core.lifecycle import OrderKind, Phase, Trigger
from ones.core.record import Ending, JobRecord
from ones.core.schedule import Allocation, Worker
from ones.core.state import State


def end_soon(state: State, record: JobRecord, reason: EndReason, message: str) -> None:
    """Decide the end of a job; a `Finish` follows."""
    record.ending = Ending(reason, message)
    state.set_goal(record, None)
    state.waiting.discard(record.id)
    state.blocked.discard(record.id)
    state.advance(record, Trigger.END_DECIDED)


def stopped(state: State, record: JobRecord) -> None:
    """Handle the exit of all workers of a stop: the job waits, or starts on its promised GPUs."""
    assert record.in_flight is not None
    record.generation = Generation(record.in_flight.plan)  # older reports are stale
    record.in_flight, record.held, record.reforming = None, None, False
    record.formed = ()
    if record.goal is None and record.ending is None:
        record.preemptions += 1
    state.advance(record, Trigger.ALL_GONE)


def lose(
    state: State,
    record: JobRecord,
    gpus: Iterable[Gpu],
    *,
    failed: bool,
    left: bool = False,
    why: str = "",
) -> None:
    """Handle the loss of GPUs that the job was on or was promised.

    `left`: the worker was stopped from outside; this is not counted as a loss. `failed`: the loss
    counts as a failed try of the job.
    """
    gone = set(gpus)
    was_on = record.held.gpus if record.held else ()
    if not left:
        record.losses += len(gone.intersection(was_on))
    order = record.in_flight
    if order is not None and order.kind is OrderKind.STOP:
        if record.goal is not None and gone & set(record.goal.gpus):
            state.set_goal(record, None)
            record.withdraw_due = True
        if not record.occupied:
            record.epoch_samples = record.epoch_steps = 0  # no worker was left to save them
            stopped(state, record)
        return
    if order is not None and order.kind is OrderKind.START:
        abandon_start(state, record, failed=failed, why=why)
        return
    if record.held is None:  # GPUs were promised only
        state.set_goal(record, None)
        record.withdraw_due = True
        state.advance(record, Trigger.PROMISE_LOST)
        return
    record.held = record.held.without(g for g in was_on if g not in record.occupied)
    is_stopping = record.phase is Phase.STOPPING  # the job's `Stop` is due
    if record.held is None or record.held.n_gpus < record.job.min_gpus or is_stopping:
        # elastic workers that are left save the work before they leave; the other processes of a
        # fixed-size job only stop, and their losses are the same failure
        counts = record.held is None if record.job.elastic else not is_stopping
        _too_few_left(state, record, failed=failed and counts, why=why)
        return
    if gone.intersection(record.formed or was_on):  # else the others have continued already
        record.reforming = True
    if order is not None and order.allocation is not None:
        target = order.allocation.without(gone)
        if target is None:
            _too_few_left(state, record, failed=failed, why=why)
            return
        # the engine reports whether the order can still be carried out
        record.in_flight = replace(order, allocation=target)
        state.set_goal(record, record.goal.without(gone) if record.goal else None)
    else:
        if record.goal is not None and record.goal != record.held:
            record.withdraw_due |= record.goal.without(gone) != record.held
        state.set_goal(record, record.held)
    still_changing = record.reforming or record.in_flight is not None
    state.advance(record, Trigger.WORKERS_LOST if still_changing else Trigger.SETTLED)


def _too_few_left(state: State, record: JobRecord, *, failed: bool, why: str) -> None:
    """Handle a loss after which too few workers are left: all processes of the job must leave."""
    if record.held is None:
        record.epoch_samples = record.epoch_steps = 0
    if record.occupied:
        record.held = Allocation(tuple(Worker(gpu, 0) for gpu in record.occupied))
    if record.held is None:
        back_to_queue(state, record, failed=failed, why=why)
        return
    record.in_flight, record.reforming = None, False
    record.failures += failed
    state.set_goal(record, None)
    state.advance(record, Trigger.TOO_FEW_LEFT)
    _give_up_if_hopeless(state, record, why)


def keep_held(state: State, record: JobRecord) -> None:
    """Let the job keep the GPUs it holds. Jobs that were promised some of them lose the promise."""
    assert record.held is not None
    for gpu in record.held.gpus:
        claimant = state.assigned.get(gpu)
        if claimant is not None and claimant != record.id:
            _lose_promise(state, state.touch(claimant))
    state.set_goal(record, record.held)
    state.advance(record, Trigger.WORKERS_LOST if record.reforming else Trigger.SETTLED)


def _lose_promise(state: State, record: JobRecord) -> None:
    order = record.in_flight
    if order is None:
        state.set_goal(record, record.held)
    else:
        state.set_goal(record, order.allocation if order.kind is OrderKind.RESCALE else None)
    record.withdraw_due = True
    runs = record.held is not None and order is None and not record.reforming
    state.advance(record, Trigger.SETTLED if runs else Trigger.PROMISE_LOST)


def abandon_start(state: State, record: JobRecord, *, failed: bool, why: str = "") -> None:
    """Abandon a start that cannot be completed: the other workers must leave."""
    wanted = record.in_flight.allocation if record.in_flight else None
    assert wanted is not None
    record.held = wanted.without(g for g in wanted.gpus if g not in record.occupied)
    record.in_flight = None
    record.ready.clear()
    if record.held is None:
        back_to_queue(state, record, failed=failed, why=why)
        return
    record.failures += failed
    state.set_goal(record, None)
    state.advance(record, Trigger.TOO_FEW_LEFT)
    _give_up_if_hopeless(state, record, why)


def back_to_queue(state: State, record: JobRecord, *, failed: bool, why: str = "") -> None:
    record.held, record.in_flight, record.reforming = None, None, False
    record.formed = ()
    record.ready.clear()
    record.failures += failed
    # the job resumes from its last checkpoint, taken at the end of an epoch
    record.epoch_samples = record.epoch_steps = 0
    state.set_goal(record, None)
    _give_up_if_hopeless(state, record, why)
    state.advance(record, Trigger.ALL_GONE)


def _give_up_if_hopeless(state: State, record: JobRecord, why: str = "") -> None:
    if record.failures > record.job.retries and record.phase is not Phase.ENDING:
        why = why or reasons.ALL_WORKERS_DIED
        message = reasons.failed(record.id, why, record.failures, record.job.retries + 1)
        end_soon(state, record, EndReason.FAILED, message)
