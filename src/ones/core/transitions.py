"""What every event changes in the state.

Each handler returns whether it applied the event. An event of an ended or unknown job, of an old
generation, or a duplicate is dropped and counted: the network causes all of these, and none is an
error. Handlers mark jobs as due; `actions` makes the actions that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

from msgspec.structs import replace

from ones.core import events as ev
from ones.core import failures
from ones.core import node_transitions as nodes
from ones.core.cluster import Gpu
from ones.core.job import Description, EndReason, JobId, StepTime
from ones.core.lifecycle import OrderKind, Phase, Trigger
from ones.core.record import JobRecord, outcome_of
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.errors import BrokenEngineError
from ones.stopping import StopReason, after_epoch
from ones.wire.bounds import shared

#: maximum of configurations of a job whose step times are kept
MOST_CONFIGURATIONS = 64


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
    state.due.clear()
    return _HANDLERS[type(event)](state, event)


# requests of users


def _submitted(state: State, event: ev.JobSubmitted) -> bool:
    job = event.job
    if job.id in state.records or job.id in state.ended:
        return state.drop("duplicate")
    record = JobRecord(job, state.submitted, since=job.submitted_at, priority=job.priority)
    state.add(record)
    state.enqueue(record)
    return True


def _cancel_requested(state: State, event: ev.CancelRequested) -> bool:
    record = _living(state, event.job)
    if record is None:
        return False
    if record.phase is Phase.ENDING:
        return state.drop("duplicate")
    failures.end_soon(
        state, record, EndReason.CANCELLED, f"cancelled by {event.by}" if event.by else ""
    )
    return True


def _priority_changed(state: State, event: ev.PriorityChanged) -> bool:
    record = _living(state, event.job)
    if record is None:
        return False
    waits = record.id in state.waiting
    state.waiting.discard(record.id)
    record.priority = event.priority
    if waits:
        state.waiting.add(record.id, record.job.owner, record.key)
    return True


def _owner_limit_set(state: State, event: ev.OwnerLimitSet) -> bool:
    state.waiting.limit(event.owner, event.max_gpus)
    return True


# reports of the script


def _described(state: State, event: ev.JobDescribed) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    record.description = Description(**shared(event, Description))
    if record.found_fixed:  # too soon: it has joined after all
        record.found_fixed = False
        record.job = replace(record.job, elastic=True)
    if event.max_local_batch is not None and record.max_local_batch is None:
        record.max_local_batch = event.max_local_batch

    def resolved(allocation: Allocation | None) -> Allocation | None:
        if allocation is None:
            return None
        return allocation.resolved(event.base_batch, record.max_local_batch)

    record.held = resolved(record.held)
    if record.in_flight is not None:
        record.in_flight = replace(
            record.in_flight, allocation=resolved(record.in_flight.allocation)
        )
    state.set_goal(record, resolved(record.goal))
    return True


def _found_fixed(state: State, event: ev.JobFoundFixed) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    if not record.job.elastic:
        return state.drop("duplicate")
    record.found_fixed = True
    record.job = replace(record.job, elastic=False)
    return True


def _steps_done(state: State, event: ev.StepsDone) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    if event.epoch <= record.epochs or event.samples < record.epoch_samples:
        return state.drop("duplicate")
    record.epoch_steps, record.epoch_samples = event.steps, event.samples
    _prove(record)
    return True


def _epoch_finished(state: State, event: ev.EpochFinished) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    if event.epoch <= record.epochs:
        return state.drop("duplicate")
    record.epochs = event.epoch
    record.samples += event.samples
    record.steps += event.steps
    record.epoch_samples = record.epoch_steps = 0
    if record.first_loss is None:
        record.first_loss = event.loss if event.first_loss is None else event.first_loss
    if event.loss is not None:
        record.loss = event.loss
    if event.accuracy is not None:
        record.accuracy = event.accuracy
    if event.step_seconds is not None:
        record.step_seconds = event.step_seconds
    if event.gradient_noise is not None:
        record.gradient_noise = event.gradient_noise
    if event.planned_epochs is not None and event.planned_epochs != record.job.epochs:
        record.job = replace(record.job, epochs=event.planned_epochs)  # the script knows best
    _prove(record)
    record.track, reason = after_epoch(
        record.job.stop,
        record.track,
        loss=nan if "loss" in event.not_finite else event.loss,
        accuracy=nan if "accuracy" in event.not_finite else event.accuracy,
    )
    if reason is not None and record.phase is not Phase.ENDING:
        done = EndReason.FINISHED if reason is StopReason.EPOCHS else EndReason.CONVERGED
        failures.end_soon(state, record, done, reason.value)
    return True


def _throughput_measured(state: State, event: ev.ThroughputMeasured) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    old = record.profile.get(event.configuration)
    steps = event.steps + (old.steps if old else 0)
    known = old.seconds * old.steps if old else 0.0
    mean = (known + event.step_seconds * event.steps) / steps
    profile = dict(record.profile)  # a copy: a policy may keep a view of it
    if len(profile) >= MOST_CONFIGURATIONS:  # drop the one measured longest ago
        profile.pop(event.configuration if old else next(iter(profile)))
    profile[event.configuration] = StepTime(mean, steps)
    record.profile = profile
    _prove(record)
    return True


def _memory_limit_learned(state: State, event: ev.MemoryLimitLearned) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    record.max_local_batch = event.max_local_batch
    record.proven_part = min(record.proven_part, event.max_local_batch)
    return True


# answers to orders


def _worker_ready(state: State, event: ev.WorkerReady) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    order = record.in_flight
    if order is not None and order.kind is OrderKind.START and order.allocation is not None:
        record.ready.add(event.gpu)
        if len(record.ready) == order.allocation.n_gpus:
            record.held, record.in_flight = order.allocation, None
            record.ready.clear()
            state.advance(record, Trigger.ALL_READY)
    return True


def _rescaled(state: State, event: ev.Rescaled) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    order = record.in_flight
    if order is None and record.held is None:
        return state.drop("stale")  # the workers are gone since
    ordered = order is not None and order.kind is OrderKind.RESCALE
    if order is not None and ordered and event.generation.plan == order.plan:
        if _gpus_of(record.held) != _gpus_of(order.allocation):
            record.moves += 1
            record.moved_seconds += event.pause_seconds
        record.held, record.in_flight = order.allocation, None
        record.rescales += 1
        record.pause_seconds += event.pause_seconds
    elif event.generation <= record.generation:
        return state.drop("duplicate")
    record.reforming = False
    record.formed = event.survivors
    record.generation = event.generation
    if record.in_flight is None:
        reached = record.held == record.goal
        state.advance(record, Trigger.SETTLED if reached else Trigger.STEP_DONE)
    else:
        state.due[record.id] = None
    return True


def _gpus_of(allocation: Allocation | None) -> tuple[Gpu, ...]:
    return allocation.gpus if allocation else ()


def _rescale_failed(state: State, event: ev.RescaleFailed) -> bool:
    record = _reporting(state, event)
    if record is None:
        return False
    order = record.in_flight
    if order is None or order.plan != event.generation.plan or order.kind is OrderKind.STOP:
        return state.drop("duplicate")
    if order.kind is OrderKind.START:
        why = f"its start failed: {event.reason}"
        failures.abandon_start(state, record, failed=not event.harmless, why=why)
        return True
    record.in_flight = None
    if record.goal != order.allocation:  # a second step was prepared
        record.withdrawn = True
        state.due[record.id] = None
    assert record.held is not None
    record.held = record.held.without(g for g in record.held.gpus if g not in record.occupied)
    if record.held is None:
        # all workers had left, stopped from outside or with the machine: not a try of the job
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
        why = f"its last worker died: {event.reason}" if event.reason else ""
        failures.lose(state, record, [event.gpu], failed=True, why=why)
    return True


def _job_ended(state: State, event: ev.JobEnded) -> bool:
    record = _living(state, event.job)
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
    return True


# the scheduler itself


def _entry_quarantined(state: State, event: ev.EntryQuarantined) -> bool:
    """The job that the entry belongs to fails, unless it is ending already."""
    record = state.touch(event.job) if event.job in state.records else None
    if record is not None and record.phase is not Phase.ENDING:
        message = f"{event.kind} could not be handled and was quarantined: {event.reason}"
        failures.end_soon(state, record, EndReason.FAILED, message)
    return True


def _nothing_changes(state: State, event: ev.Event) -> bool:
    return True


# shared by the handlers


def _living(state: State, job: JobId) -> JobRecord | None:
    if job in state.records:
        return state.touch(job)
    state.drop("ended" if job in state.ended else "unknown")
    return None


def _reporting(state: State, event: ev.JobReport) -> JobRecord | None:
    """The job of a report; None if the report's generation is an old or a future one."""
    record = _living(state, event.job)
    if record is None:
        return None
    newest = max(record.generation.plan, record.in_flight.plan if record.in_flight else 0)
    if event.generation < record.generation or event.generation.plan > newest:
        state.drop("stale")
        return None
    return record


def _is_there(state: State, event: ev.WorkerLeft | ev.WorkerLost) -> bool:
    occupant = state.occupants.get(event.gpu)
    return (
        occupant is not None
        and occupant.job == event.job
        and event.generation.plan >= occupant.plan
    )


def _prove(record: JobRecord) -> None:
    """The job has made steps with its allocation: this local batch fits into memory."""
    if record.held is not None:
        record.proven_part = max(record.proven_part, record.held.largest_part)


_HANDLERS: dict[type[ev.Event], Callable[[State, Any], bool]] = {
    ev.JobSubmitted: _submitted,
    ev.JobDescribed: _described,
    ev.JobFoundFixed: _found_fixed,
    ev.StepsDone: _steps_done,
    ev.EpochFinished: _epoch_finished,
    ev.ThroughputMeasured: _throughput_measured,
    ev.MemoryLimitLearned: _memory_limit_learned,
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
    ev.OwnerLimitSet: _owner_limit_set,
    ev.JobEnded: _job_ended,
    ev.EntryQuarantined: _entry_quarantined,
    ev.PolicyFailed: _nothing_changes,
    ev.PolicyReplaced: _nothing_changes,
    ev.Woke: _nothing_changes,
}
