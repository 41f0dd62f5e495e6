"""What every event means for the tables: the fold that state is.

Each handler answers whether it took the event. What comes too late (of a job that
has ended, or of a generation that is no more), twice, or of nobody we know is
dropped and counted: the network may do all of that, and none of it is an error.
Handlers mark jobs as due; the orders that follow are made in `orders`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

from msgspec.structs import replace

from ones.core import events as ev
from ones.core import losses
from ones.core.cluster import Gpu, Node, NodeState
from ones.core.job import Description, EndReason, JobId, StepTime
from ones.core.record import JobRecord, OrderKind, outcome_of
from ones.core.schedule import Allocation
from ones.core.tables import Tables
from ones.errors import BrokenEngineError
from ones.stopping import StopReason, after_epoch

#: speeds are kept for so many configurations of a job at most
MOST_CONFIGURATIONS = 64


def apply(tables: Tables, event: ev.Event) -> bool:
    """Fold one event in. True if it was taken, False if it was dropped and counted."""
    if not event.at >= tables.now:  # nor may it be no number
        raise BrokenEngineError(
            f"{type(event).__name__} at {event.at} s came after an event at {tables.now} s"
        )
    tables.now = event.at
    tables.version += 1
    tables.requeued = False
    tables.due.clear()
    return _HANDLERS[type(event)](tables, event)


# a user's doing


def _submitted(tables: Tables, event: ev.JobSubmitted) -> bool:
    job = event.job
    if job.id in tables.records or job.id in tables.ended:
        return tables.drop("duplicate")
    record = JobRecord(job, tables.submitted, since=job.submitted_at, priority=job.priority)
    tables.add(record)
    tables.enqueue(record)
    return True


def _cancel_requested(tables: Tables, event: ev.CancelRequested) -> bool:
    record = _living(tables, event.job)
    if record is None:
        return False
    if record.ending is not None:
        return tables.drop("duplicate")
    losses.end_soon(
        tables, record, EndReason.CANCELLED, f"cancelled by {event.by}" if event.by else ""
    )
    return True


def _priority_changed(tables: Tables, event: ev.PriorityChanged) -> bool:
    record = _living(tables, event.job)
    if record is None:
        return False
    waits = record.id in tables.waiting
    tables.waiting.discard(record.id)
    record.priority = event.priority
    if waits:
        tables.waiting.add(record.id, record.job.owner, record.key)
    return True


def _owner_limit_set(tables: Tables, event: ev.OwnerLimitSet) -> bool:
    tables.waiting.limit(event.owner, event.max_gpus)
    return True


# a script's reports


def _described(tables: Tables, event: ev.JobDescribed) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    record.description = Description(
        dataset_size=event.dataset_size,
        base_batch=event.base_batch,
        optimizer=event.optimizer,
        parameter_bytes=event.parameter_bytes,
        max_local_batch=event.max_local_batch,
    )
    if record.found_fixed:  # too soon: it has joined after all
        record.found_fixed = False
        record.job = replace(record.job, elastic=True)
    if event.max_local_batch is not None and record.max_local_batch is None:
        record.max_local_batch = event.max_local_batch

    def spelled_out(allocation: Allocation | None) -> Allocation | None:
        if allocation is None or allocation.batch:
            return allocation
        batch = max(event.base_batch, allocation.n_gpus)
        return Allocation.even(allocation.gpus, batch, record.max_local_batch)

    record.held = spelled_out(record.held)
    if record.in_flight is not None and record.in_flight.allocation is not None:
        record.in_flight = replace(
            record.in_flight, allocation=spelled_out(record.in_flight.allocation)
        )
    tables.set_goal(record, spelled_out(record.goal))
    return True


def _found_fixed(tables: Tables, event: ev.JobFoundFixed) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    if not record.job.elastic:
        return tables.drop("duplicate")
    record.found_fixed = True
    record.job = replace(record.job, elastic=False)
    return True


def _steps_done(tables: Tables, event: ev.StepsDone) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    if event.epoch <= record.epochs or event.samples < record.epoch_samples:
        return tables.drop("duplicate")
    record.epoch_steps, record.epoch_samples = event.steps, event.samples
    _prove(record)
    return True


def _epoch_finished(tables: Tables, event: ev.EpochFinished) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    if event.epoch <= record.epochs:
        return tables.drop("duplicate")
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
        record.job = replace(record.job, epochs=event.planned_epochs)  # it knows best
    _prove(record)
    record.track, reason = after_epoch(
        record.job.stop,
        record.track,
        loss=nan if "loss" in event.not_finite else event.loss,
        accuracy=nan if "accuracy" in event.not_finite else event.accuracy,
    )
    if reason is not None and record.ending is None:
        done = EndReason.FINISHED if reason is StopReason.EPOCHS else EndReason.CONVERGED
        losses.end_soon(tables, record, done, reason.value)
    return True


def _throughput_measured(tables: Tables, event: ev.ThroughputMeasured) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    old = record.profile.get(event.configuration)
    steps = event.steps + (old.steps if old else 0)
    known = old.seconds * old.steps if old else 0.0
    mean = (known + event.step_seconds * event.steps) / steps
    profile = dict(record.profile)  # a copy: a policy may keep a view of it
    if len(profile) >= MOST_CONFIGURATIONS:  # the one measured longest ago goes
        profile.pop(event.configuration if old else next(iter(profile)))
    profile[event.configuration] = StepTime(mean, steps)
    record.profile = profile
    _prove(record)
    return True


def _memory_limit_learned(tables: Tables, event: ev.MemoryLimitLearned) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    record.max_local_batch = event.max_local_batch
    record.proven_part = min(record.proven_part, event.max_local_batch)
    return True


# answers to orders


def _worker_ready(tables: Tables, event: ev.WorkerReady) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    order = record.in_flight
    if order is not None and order.kind is OrderKind.START and order.allocation is not None:
        record.ready.add(event.gpu)
        if len(record.ready) == order.allocation.n_gpus:
            record.held, record.in_flight = order.allocation, None
            record.ready.clear()
    return True


def _rescaled(tables: Tables, event: ev.Rescaled) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    order = record.in_flight
    ordered = order is not None and order.kind is OrderKind.RESCALE
    if order is not None and ordered and event.generation.plan == order.plan:
        if _gpus_of(record.held) != _gpus_of(order.allocation):
            record.moves += 1
            record.moved_seconds += event.pause_seconds
        record.held, record.in_flight = order.allocation, None
        record.rescales += 1
        record.pause_seconds += event.pause_seconds
    elif event.generation <= record.generation:
        return tables.drop("duplicate")
    record.reforming = False
    record.formed = event.survivors
    record.generation = event.generation
    tables.due[record.id] = None
    return True


def _gpus_of(allocation: Allocation | None) -> tuple[Gpu, ...]:
    return allocation.gpus if allocation else ()


def _rescale_failed(tables: Tables, event: ev.RescaleFailed) -> bool:
    record = _reporting(tables, event)
    if record is None:
        return False
    order = record.in_flight
    if order is None or order.plan != event.generation.plan or order.kind is OrderKind.STOP:
        return tables.drop("duplicate")
    if order.kind is OrderKind.START:
        why = f"its start failed: {event.reason}"
        losses.abandon_start(tables, record, failed=not event.harmless, why=why)
        return True
    record.in_flight = None
    if record.goal != order.allocation:  # a second stroke was prepared
        record.withdrawn = True
        tables.due[record.id] = None
    assert record.held is not None
    record.held = record.held.without(g for g in record.held.gpus if g not in record.occupied)
    if record.held is None:
        # all had left, for whoever loses the last one is told so: stopped from outside, or with
        # the machine, which is no try of the job's
        losses.back_to_queue(tables, record, failed=False)
    else:
        losses.stay(tables, record)
    return True


def _worker_left(tables: Tables, event: ev.WorkerLeft) -> bool:
    if not _is_there(tables, event):
        return tables.drop("stale")
    tables.vacate(event.gpu)
    record = tables.records.get(event.job)
    if record is None:  # it has ended already: nothing but the GPU was left of it
        return True
    if record.in_flight is not None and record.in_flight.kind is OrderKind.STOP:
        if not record.occupied:
            losses.stopped(tables, record)
    elif record.in_flight is None and record.held is not None and event.gpu in record.held.gpus:
        losses.lose(tables, record, [event.gpu], failed=False, left=True)
    return True


def _worker_lost(tables: Tables, event: ev.WorkerLost) -> bool:
    if not _is_there(tables, event):
        return tables.drop("stale")
    tables.vacate(event.gpu)
    record = tables.records.get(event.job)
    if record is not None:
        why = f"its last worker died: {event.reason}" if event.reason else ""
        losses.lose(tables, record, [event.gpu], failed=True, why=why)
    return True


def _job_ended(tables: Tables, event: ev.JobEnded) -> bool:
    record = _living(tables, event.job)
    if record is None:
        return False
    if event.generation is not None and event.generation < record.generation:
        return tables.drop("stale")
    ending = record.ending
    reason, message = event.reason, event.message
    if ending is not None:
        reason, message = ending.reason, message or ending.message
    tables.book()
    tables.close(record, outcome_of(record, event.at, reason, message))
    return True


# nodes


def _node_up(tables: Tables, event: ev.NodeUp) -> bool:
    known = tables.cluster.nodes.get(event.node)
    if known is not None and known.state is not NodeState.DOWN and known.gpus != event.gpus:
        raise BrokenEngineError(
            f"node {event.node} has {known.gpus} GPUs and came up again with {event.gpus}"
        )
    aside = known.aside if known is not None and known.state is not NodeState.DOWN else ()
    tables.set_node(Node(event.node, event.gpus, aside=aside, groups=event.groups))
    return True


def _node_draining(tables: Tables, event: ev.NodeDraining) -> bool:
    node = tables.cluster.nodes.get(event.node)
    if node is None or node.state is NodeState.DOWN:
        return tables.drop("unknown")
    tables.set_node(replace(node, state=NodeState.DRAINING))
    return True


def _node_down(tables: Tables, event: ev.NodeDown) -> bool:
    node = tables.cluster.nodes.get(event.node)
    if node is None or node.state is NodeState.DOWN:
        return tables.drop("unknown")
    hit: dict[str, tuple[JobRecord, list[Gpu]]] = {}
    for gpu in (Gpu(node.id, i) for i in range(node.gpus)):
        occupant = tables.occupants.get(gpu)
        if occupant is not None:
            tables.vacate(gpu)
        for job in {occupant.job if occupant else None, tables.assigned.get(gpu)} - {None}:
            if job in tables.records:
                hit.setdefault(job, (tables.touch(job), []))[1].append(gpu)
    tables.set_node(replace(node, state=NodeState.DOWN))
    for _, (record, gpus) in sorted(hit.items()):
        losses.lose(tables, record, gpus, failed=False)
    return True


def _gpu_set_aside(tables: Tables, event: ev.GpuSetAside) -> bool:
    node = tables.cluster.nodes.get(event.gpu.node)
    if node is None or node.state is NodeState.DOWN or not 0 <= event.gpu.index < node.gpus:
        return tables.drop("unknown")
    if event.gpu.index in node.aside:
        return tables.drop("duplicate")
    tables.set_node(replace(node, aside=tuple(sorted((*node.aside, event.gpu.index)))))
    return True


def _gpu_returned(tables: Tables, event: ev.GpuReturned) -> bool:
    node = tables.cluster.nodes.get(event.gpu.node)
    if node is None or event.gpu.index not in node.aside:
        return tables.drop("unknown")
    tables.set_node(replace(node, aside=tuple(i for i in node.aside if i != event.gpu.index)))
    return True


# the scheduler itself


def _entry_quarantined(tables: Tables, event: ev.EntryQuarantined) -> bool:
    """The job that the entry belongs to fails, unless it is ending already."""
    record = tables.touch(event.job) if event.job in tables.records else None
    if record is not None and record.ending is None:
        message = f"{event.kind} could not be handled and was quarantined: {event.reason}"
        losses.end_soon(tables, record, EndReason.FAILED, message)
    return True


def _nothing_changes(tables: Tables, event: ev.Event) -> bool:
    return True


# what several of them share


def _living(tables: Tables, job: JobId) -> JobRecord | None:
    if job in tables.records:
        return tables.touch(job)
    tables.drop("ended" if job in tables.ended else "unknown")
    return None


def _reporting(tables: Tables, event: ev.JobReport) -> JobRecord | None:
    """The job of a report, unless the report is of a generation that is no more (or not yet)."""
    record = _living(tables, event.job)
    if record is None:
        return None
    newest = max(record.generation.plan, record.in_flight.plan if record.in_flight else 0)
    if event.generation < record.generation or event.generation.plan > newest:
        tables.drop("stale")
        return None
    return record


def _is_there(tables: Tables, event: ev.WorkerLeft | ev.WorkerLost) -> bool:
    occupant = tables.occupants.get(event.gpu)
    return (
        occupant is not None
        and occupant.job == event.job
        and event.generation.plan >= occupant.plan
    )


def _prove(record: JobRecord) -> None:
    """It has made steps as it is: so much fits."""
    if record.held is not None:
        record.proven_part = max(record.proven_part, record.held.largest_part)


_HANDLERS: dict[type[ev.Event], Callable[[Tables, Any], bool]] = {
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
    ev.NodeUp: _node_up,
    ev.NodeDraining: _node_draining,
    ev.NodeDown: _node_down,
    ev.GpuSetAside: _gpu_set_aside,
    ev.GpuReturned: _gpu_returned,
    ev.CancelRequested: _cancel_requested,
    ev.PriorityChanged: _priority_changed,
    ev.OwnerLimitSet: _owner_limit_set,
    ev.JobEnded: _job_ended,
    ev.EntryQuarantined: _entry_quarantined,
    ev.PolicyFailed: _nothing_changes,
    ev.PolicyReplaced: _nothing_changes,
    ev.Woke: _nothing_changes,
}
