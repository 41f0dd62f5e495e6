"""What becomes of a job that loses workers, or an order that fails.

Survivors go on; too few of them, or none, send the job back to the queue; a start that
cannot come together is given up; who was promised GPUs that another keeps must do
without. A job whose workers died too often ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ones.core.cluster import Gpu
from ones.core.job import EndReason, Generation
from ones.core.record import Ending, JobRecord, OrderKind
from ones.core.schedule import Allocation, Worker
from ones.core.tables import Tables


def end_soon(tables: Tables, record: JobRecord, reason: EndReason, message: str) -> None:
    record.ending = Ending(reason, message)
    tables.set_goal(record, None)
    tables.waiting.discard(record.id)
    tables.due[record.id] = None


def stopped(tables: Tables, record: JobRecord) -> None:
    """All workers have left as told: into the queue, or on to where the job moves."""
    assert record.in_flight is not None
    record.generation = Generation(record.in_flight.plan)  # whatever is older is stale now
    record.in_flight, record.held, record.reforming = None, None, False
    record.formed = ()
    if record.goal is None and record.ending is None:
        record.preemptions += 1
    tables.due[record.id] = None
    tables.enqueue(record)


def lose(
    tables: Tables,
    record: JobRecord,
    gpus: Iterable[Gpu],
    *,
    failed: bool,
    left: bool = False,
    why: str = "",
) -> None:
    """GPUs that the job was on, or was to have, are gone. `left`: its worker went in order, told
    from outside, which is not counted as a loss."""
    gone = set(gpus)
    was_on = record.held.gpus if record.held else ()
    if not left:
        record.losses += len(gone.intersection(was_on))
    order = record.in_flight
    if order is not None and order.kind is OrderKind.STOP:
        if record.goal is not None and gone & set(record.goal.gpus):
            tables.set_goal(record, None)
            record.withdrawn = True
        if not record.occupied:
            record.epoch_samples = record.epoch_steps = 0  # nobody was left to save them
            stopped(tables, record)
        return
    if order is not None and order.kind is OrderKind.START:
        abandon_start(tables, record, failed=failed, why=why)
        return
    if record.held is None:  # nothing but a goal: it goes back into the queue
        tables.set_goal(record, None)
        record.withdrawn = True
        tables.due[record.id] = None
        tables.enqueue(record)
        return
    record.held = record.held.without(g for g in was_on if g not in record.occupied)
    if record.held is None or record.held.n_gpus < record.job.min_gpus:
        # too few go by way of the queue: what is left of them can still save the work
        _too_few_left(tables, record, failed=failed and record.held is None, why=why)
        return
    if gone.intersection(record.formed or was_on):  # the others may have gone on already
        record.reforming = True
    if order is not None and order.allocation is not None:
        target = order.allocation.without(gone)
        if target is None:
            _too_few_left(tables, record, failed=failed, why=why)
            return
        # whether the order can still come true is the engine's to say
        record.in_flight = replace(order, allocation=target)
        tables.set_goal(record, record.goal.without(gone) if record.goal else None)
    else:
        if record.goal is not None and record.goal != record.held:
            record.withdrawn |= record.goal.without(gone) != record.held
        tables.set_goal(record, record.held)
    tables.due[record.id] = None


def _too_few_left(tables: Tables, record: JobRecord, *, failed: bool, why: str) -> None:
    """Not enough are left to carry the job on. Other processes of it must go first."""
    if record.held is None:
        record.epoch_samples = record.epoch_steps = 0
    if record.occupied:
        record.held = Allocation(tuple(Worker(gpu, 0) for gpu in record.occupied))
    if record.held is None:
        back_to_queue(tables, record, failed=failed, why=why)
        return
    record.in_flight, record.reforming = None, False
    record.failures += failed
    tables.set_goal(record, None)  # `Stop` follows; then the queue
    tables.due[record.id] = None
    _give_up_if_hopeless(tables, record, why)


def stay(tables: Tables, record: JobRecord) -> None:
    """The job keeps what it holds. Whoever was promised a part of that must do without."""
    assert record.held is not None
    for gpu in record.held.gpus:
        claimant = tables.assigned.get(gpu)
        if claimant is not None and claimant != record.id:
            other = tables.touch(claimant)
            order = other.in_flight
            moving = order is not None and order.kind is OrderKind.RESCALE
            tables.set_goal(other, order.allocation if order and moving else _rest(other))
            other.withdrawn = True
            tables.due[claimant] = None
            tables.enqueue(other)
    tables.set_goal(record, record.held)


def _rest(record: JobRecord) -> Allocation | None:
    """Where a job is without the move it was promised."""
    return None if record.in_flight is not None else record.held


def abandon_start(tables: Tables, record: JobRecord, *, failed: bool, why: str = "") -> None:
    """A start that lost a worker cannot come together: those who are left must go."""
    wanted = record.in_flight.allocation if record.in_flight else None
    assert wanted is not None
    record.held = wanted.without(g for g in wanted.gpus if g not in record.occupied)
    record.in_flight = None
    record.ready.clear()
    if record.held is None:
        back_to_queue(tables, record, failed=failed, why=why)
        return
    record.failures += failed
    tables.set_goal(record, None)
    tables.due[record.id] = None
    _give_up_if_hopeless(tables, record, why)


def back_to_queue(tables: Tables, record: JobRecord, *, failed: bool, why: str = "") -> None:
    record.held, record.in_flight, record.reforming = None, None, False
    record.formed = ()
    record.ready.clear()
    record.failures += failed
    # it will resume from its last checkpoint, taken at the end of an epoch
    record.epoch_samples = record.epoch_steps = 0
    tables.set_goal(record, None)
    _give_up_if_hopeless(tables, record, why)
    tables.enqueue(record)


def _give_up_if_hopeless(tables: Tables, record: JobRecord, why: str = "") -> None:
    if record.failures > record.job.retries and record.ending is None:
        why = why or "all its workers died"
        tries = f"{record.failures} of {record.job.retries + 1} tries"
        end_soon(tables, record, EndReason.FAILED, f"{why} ({tries})")
