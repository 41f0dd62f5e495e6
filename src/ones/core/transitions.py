"""State changes by events.

Each handler returns whether it applied the event. An event of an ended or unknown job, of an old
generation, or a duplicate is dropped and counted: a network can cause each, so none is an error.
Handlers mark jobs as due; `actions` makes the actions that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ones.core import events as ev
from ones.core import failures, reasons
from ones.core import node_transitions as nodes
from ones.core import report_transitions as reports
from ones.core.cluster import Gpu
from ones.core.gates import without
from ones.core.job import EndReason
from ones.core.lifecycle import OrderKind, Phase, Trigger
from ones.core.record import JobRecord, outcome_of
from ones.core.report_transitions import reporting_job, unfinished_job
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.errors import BrokenEngineError


def apply(state: State, event: ev.Event) -> bool:
    """Apply one event. Returns False if the event was ignored (stale generation, duplicate, unknown
    or ended job)."""
    if not event.at >= state.now:  # also refuses NaN
        raise BrokenEngineError(
            f"{type(event).__name__} at {event.at} s came after an event at {state.now} s"
        )
    state.now = event.at
    state.version += 1
    state.requeued = False
    state.released.clear()
    state.reordered.clear()
    state.due.clear()
    applied = _HANDLERS[type(event)](state, event)
    if applied:
        state.review_fair_share()
    return applied


# requests of users


def _submitted(state: State, event: ev.JobSubmitted) -> bool:
    job = event.job
    if job.id in state.records or job.id in state.ended:
        return state.drop("duplicate")
    record = JobRecord(
        job,
        state.submitted,
        since=job.submitted_at,
        priority=job.priority,
        penalty=state.fair_share.penalty(job.owner),
    )
    lost = ""
    for dependency in job.after:
        other = state.ended.get(dependency.job)
        if dependency.job in state.records:
            record.awaits = (*record.awaits, dependency)
        elif other is None or not (dependency.any_end or other.reason.completed):
            lost = reasons.dependency_lost(dependency.job, other.reason.value if other else "")
    limit = job.array_limit
    record.in_line = limit is not None and state.gates.is_full(job.array, limit)
    state.add(record)
    state.enqueue(record)
    if lost:
        failures.end_soon(state, record, EndReason.CANCELLED, lost)
    return True


def _cancel_requested(state: State, event: ev.CancelRequested) -> bool:
    record = unfinished_job(state, event.job)
    if record is None:
        return False
    if record.phase is Phase.ENDING:
        return state.drop("duplicate")
    message = reasons.cancelled(event.by) if event.by else ""
    failures.end_soon(state, record, EndReason.CANCELLED, message)
    return True


def _priority_changed(state: State, event: ev.PriorityChanged) -> bool:
    record = unfinished_job(state, event.job)
    if record is None:
        return False
    state.reorder(record, priority=event.priority, penalty=record.penalty)
    return True


def _job_changed(state: State, event: ev.JobChanged) -> bool:
    record = unfinished_job(state, event.job)
    if record is None:
        return False
    if event.priority is not None:
        state.reorder(record, priority=event.priority, penalty=record.penalty)
    if event.min_gpus is not None or event.max_gpus is not None:
        job = record.job
        least = job.min_gpus if event.min_gpus is None else event.min_gpus
        most = job.max_gpus if event.max_gpus is None else event.max_gpus or None
        if most is None or least <= most:  # else two changes crossed: the later one is dropped
            record.job = replace(job, min_gpus=least, max_gpus=most)
            state.conform(record)
            state.enqueue(record)
    return True


def _job_held(state: State, event: ev.JobHeld) -> bool:
    record = unfinished_job(state, event.job)
    if record is None:
        return False
    if record.on_hold or record.ending is not None:
        return state.drop("duplicate")
    record.on_hold, record.held_by = True, event.by
    state.conform(record)
    state.enqueue(record)
    return True


def _job_released(state: State, event: ev.JobReleased) -> bool:
    record = unfinished_job(state, event.job)
    if record is None:
        return False
    if not record.on_hold:
        return state.drop("duplicate")
    record.on_hold, record.held_by = False, ""
    state.enqueue(record)
    return True


def _unblock(state: State, ended: JobRecord, reason: EndReason) -> None:
    """Let the jobs start that waited for the end of this one, or end those that never can."""
    for name in state.gates.dependents(ended.id):
        if name not in state.records:
            continue
        record = state.touch(name)
        dependency = next(d for d in record.awaits if d.job == ended.id)
        if record.ending is None and not (dependency.any_end or reason.completed):
            lost = reasons.dependency_lost(ended.id, reason.value)
            failures.end_soon(state, record, EndReason.CANCELLED, lost)
            continue
        record.awaits = without(record.awaits, ended.id)
        _enqueue_released(state, record)
    for name in state.gates.next_tasks(ended):
        if name in state.records:
            state.gates.admit(ended.job.array)
            record = state.touch(name)
            record.in_line = False
            _enqueue_released(state, record)


def _enqueue_released(state: State, record: JobRecord) -> None:
    state.enqueue(record)
    if not record.blocked and record.ending is None:
        state.released.append(record.id)


def _owner_limit_set(state: State, event: ev.OwnerLimitSet) -> bool:
    state.waiting.set_limit(event.owner, event.max_gpus)
    return True


def _fair_share_set(state: State, event: ev.FairShareSet) -> bool:
    state.set_fair_share(event.half_life, event.used)
    return True


# answers to orders


def _worker_ready(state: State, event: ev.WorkerReady) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    order = record.in_flight
    if order is not None and order.kind is OrderKind.START and order.allocation is not None:
        allocation = _applied(record, order.allocation, event.batch)
        _follow(state, record, order.allocation, allocation)
        if allocation is not order.allocation:
            record.in_flight = replace(order, allocation=allocation)
        record.ready.add(event.gpu)
        if len(record.ready) == allocation.n_gpus:
            record.held, record.in_flight = allocation, None
            record.ready.clear()
            state.advance(record, Trigger.ALL_READY)
    return True


def _rescaled(state: State, event: ev.Rescaled) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    order = record.in_flight
    if order is None and record.held is None:
        return state.drop("stale")  # the workers have left since
    ordered = order is not None and order.kind is OrderKind.RESCALE
    if order is not None and ordered and event.generation.plan == order.plan:
        assert order.allocation is not None
        allocation = _applied(record, order.allocation, event.batch)
        if _gpus_of(record.held) != allocation.gpus:
            record.moves += 1
            record.moved_seconds += event.pause_seconds
        _follow(state, record, order.allocation, allocation)
        record.held, record.in_flight = allocation, None
        record.rescales += 1
        record.pause_seconds += event.pause_seconds
    elif event.generation <= record.generation:
        return state.drop("duplicate")
    elif record.held is not None:
        allocation = _applied(record, record.held, event.batch)
        _follow(state, record, record.held, allocation)
        record.held = allocation
    record.reforming = False
    record.formed = event.survivors
    record.generation = event.generation
    if record.in_flight is None:
        reached = record.held == record.goal
        state.advance(record, Trigger.SETTLED if reached else Trigger.STEP_DONE)
    else:
        state.due[record.id] = None
    return True


def _applied(record: JobRecord, ordered: Allocation, batch: int | None) -> Allocation:
    """The allocation with the batch that the engine reports; None: it has the ordered one."""
    if batch is None or batch == ordered.batch:
        return ordered
    if batch < ordered.n_gpus:
        raise BrokenEngineError(
            f"job {record.id}: batch {batch} is too small for {ordered.n_gpus} workers"
        )
    return ordered.with_batch(batch)


def _follow(state: State, record: JobRecord, ordered: Allocation, applied: Allocation) -> None:
    """Put what was applied into the schedule, if the order was not only the first of two steps."""
    if record.goal == ordered:
        state.set_goal(record, applied)


def _gpus_of(allocation: Allocation | None) -> tuple[Gpu, ...]:
    return allocation.gpus if allocation else ()


def _rescale_failed(state: State, event: ev.RescaleFailed) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    order = record.in_flight
    if order is None or order.plan != event.generation.plan or order.kind is OrderKind.STOP:
        return state.drop("duplicate")
    if order.kind is OrderKind.START:
        why = reasons.start_failed(event.reason)
        failures.abandon_start(state, record, failed=not event.harmless, why=why)
        return True
    record.in_flight = None
    if record.goal != order.allocation:  # a second step was prepared
        record.withdraw_due = True
        state.due[record.id] = None
    assert record.held is not None
    record.held = record.held.without(g for g in record.held.gpus if g not in record.occupied)
    if record.held is None:
        # all workers left, stopped from outside or with the node: not a failed try of the job
        failures.back_to_queue(state, record, failed=False)
    else:
        failures.keep_held(state, record)
    return True


def _worker_left(state: State, event: ev.WorkerLeft) -> bool:
    if not _is_there(state, event):
        return state.drop("stale")
    state.vacate(event.gpu)
    record = state.records.get(event.job)
    if record is None:  # the job has ended: only the GPU was still occupied
        return True
    if record.in_flight is not None and record.in_flight.kind is OrderKind.STOP:
        if not record.occupied:
            failures.stopped(state, record)
    elif record.in_flight is None and record.held is not None and event.gpu in record.held.gpus:
        failures.lose(state, record, [event.gpu], failed=False, left=True)
    return True


def _worker_lost(state: State, event: ev.WorkerLost) -> bool:
    if not _is_there(state, event):
        return state.drop("stale")
    state.vacate(event.gpu)
    record = state.records.get(event.job)
    if record is not None:
        why = reasons.last_worker_died(event.reason) if event.reason else ""
        failures.lose(state, record, [event.gpu], failed=True, why=why)
    return True


def _job_ended(state: State, event: ev.JobEnded) -> bool:
    record = unfinished_job(state, event.job)
    if record is None:
        return False
    if event.generation is not None and event.generation < record.generation:
        return state.drop("stale")
    ending = record.ending
    reason, message = event.reason, event.message
    if ending is not None:
        reason, message = ending.reason, message or ending.message
    state.book()
    state.close(record, outcome_of(record, event.at, reason, message))
    _unblock(state, record, reason)
    return True


# events of the scheduler itself


def _entry_quarantined(state: State, event: ev.EntryQuarantined) -> bool:
    """Fail the job of the quarantined entry, unless the job is ending already."""
    record = state.touch(event.job) if event.job in state.records else None
    if record is not None and record.phase is not Phase.ENDING:
        message = reasons.quarantined(event.kind, event.reason)
        failures.end_soon(state, record, EndReason.FAILED, message)
    return True


def _job_warned(state: State, event: ev.JobWarned) -> bool:
    return unfinished_job(state, event.job) is not None


def _nothing_changes(state: State, event: ev.Event) -> bool:
    return True


def _is_there(state: State, event: ev.WorkerLeft | ev.WorkerLost) -> bool:
    occupant = state.occupants.get(event.gpu)
    return (
        occupant is not None
        and occupant.job == event.job
        and event.generation.plan >= occupant.plan
    )


_HANDLERS: dict[type[ev.Event], Callable[[State, Any], bool]] = {
    ev.JobSubmitted: _submitted,
    ev.JobDescribed: reports.described,
    ev.JobFoundFixed: reports.found_fixed,
    ev.StepsDone: reports.steps_done,
    ev.EpochFinished: reports.epoch_finished,
    ev.TrainingRestarted: reports.training_restarted,
    ev.TrackerLinked: reports.tracker_linked,
    ev.ThroughputMeasured: reports.throughput_measured,
    ev.MemoryLimitLearned: reports.memory_limit_learned,
    ev.WorkerReady: _worker_ready,
    ev.WorkerLeft: _worker_left,
    ev.WorkerLost: _worker_lost,
    ev.Rescaled: _rescaled,
    ev.RescaleFailed: _rescale_failed,
    ev.NodeUp: nodes.node_up,
    ev.NodeDraining: nodes.node_draining,
    ev.NodeDown: nodes.node_down,
    ev.GpuSetAside: nodes.gpu_set_aside,
    ev.GpuReturned: nodes.gpu_returned,
    ev.CancelRequested: _cancel_requested,
    ev.PriorityChanged: _priority_changed,
    ev.JobChanged: _job_changed,
    ev.JobHeld: _job_held,
    ev.JobReleased: _job_released,
    ev.JobWarned: _job_warned,
    ev.OwnerLimitSet: _owner_limit_set,
    ev.FairShareSet: _fair_share_set,
    ev.JobEnded: _job_ended,
    ev.EntryQuarantined: _entry_quarantined,
    ev.PolicyFailed: _nothing_changes,
    ev.PolicyReplaced: _nothing_changes,
    ev.Woke: _nothing_changes,
}
