"""What workers say, as it changes the engine's picture and as the brain is told of it.

Every report has its number and is taken once. It is acknowledged when the event it
became, and the number, are safe; a report that comes again after a crash finds its
number there, and is known.
"""

from __future__ import annotations

from ones.control.live.departures import done as said_done
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import Kind, LiveJob, LiveWorker, Pending, gpu_of
from ones.control.live.orders import give_up_rescale, publish_if_all_joined
from ones.control.live.reports import as_event
from ones.control.schema import heard
from ones.control.store import Done, Operation, Store, upsert
from ones.core.job import Description, Generation, JobId
from ones.errors import BugError, described
from ones.wire import Reports
from ones.wire import messages as wire


def hear(engine: LiveEngine, store: Store, message: Reports, done: Done) -> None:
    """In the brain's thread. `done` when all reports of the message are safe."""
    try:
        _hear(engine, store, message, done)
    except Exception as problem:
        engine.contain(JobId(message.job), problem)
        done(BugError(f"job {message.job}: its report could not be handled: {described(problem)}"))


def _hear(engine: LiveEngine, store: Store, message: Reports, done: Done) -> None:
    job = engine.jobs.get(JobId(message.job))
    worker = job.on(gpu_of(message.worker)) if job is not None else None
    if job is None or worker is None or message.plan < worker.plan:
        store.write(done=done)
        return
    generation = Generation(message.plan, message.incarnation)
    last = max(worker.heard, message.first + len(message.reports) - 1)

    def safe(problem: Exception | None) -> None:
        if problem is None:
            worker.safe = max(worker.safe, last)
        done(problem)

    operations: list[Operation] = []
    for number, report in enumerate(message.reports, message.first):
        if number <= worker.heard:
            continue
        worker.heard = number
        is_news = not job.ended and _take(engine, job, worker, generation, report)
        operations.append(_heard(job, worker))
        event = as_event(job, worker, generation, report) if is_news else None
        if event is not None and number == last:
            engine.say(event, operations, safe)
            return
        if event is not None:
            engine.say(event, operations)
            operations = []
    # stimuli wait until all events have gone out: so this is written behind them
    engine.post(lambda: store.write(operations=operations, done=safe))


def _heard(job: LiveJob, worker: LiveWorker) -> Operation:
    row = {"launch": worker.launch, "job": job.id, "number": worker.heard, "joined": worker.joined}
    return upsert(heard, row)


def _take(
    engine: LiveEngine,
    job: LiveJob,
    worker: LiveWorker,
    generation: Generation,
    report: wire.Report,
) -> bool:
    """Does the brain have to hear of it?"""
    if isinstance(report, wire.Ready | wire.Steps | wire.Epoch | wire.Switched):
        engine.suspicion.trains(worker.gpus[0], job.id)
    match report:
        case wire.Joined():
            return _joined(engine, job, worker, report)
        case wire.Ready():
            _ready(job, worker)
        case wire.Switched():
            return _switched(job, generation)
        case wire.SwitchFailed():
            return _switch_failed(engine, job, report)
        case wire.Leaving():
            worker.parted = True
            if report.done:
                return said_done(engine, job, worker)
            worker.leaving = True
        case wire.StoreStarted():
            job.store = report.address
            for launch in job.workers:  # who waits for it hears of it now
                engine.mailbox.nudge(launch)
        case wire.Hung():
            other = job.on(gpu_of(report.worker))
            if other is not None:
                engine.condemn(other, "it did not answer the other workers")
        case _:
            pass
    return True


def _joined(engine: LiveEngine, job: LiveJob, worker: LiveWorker, report: wire.Joined) -> bool:
    worker.joined = True
    job.join_seconds = max(job.join_seconds, engine.clock.now() - worker.since)
    is_first = job.description is None
    if is_first:
        job.description = Description(
            dataset_size=report.dataset_size,
            base_batch=report.base_batch,
            optimizer=report.optimizer,
            parameter_bytes=report.parameter_bytes,
            max_local_batch=report.max_local_batch,
        )
    if not job.elastic:
        _joined_late(engine, job, worker)
    # after the brain has heard of it, which then knows the batch as well
    engine.post(lambda: publish_if_all_joined(engine, job))
    return is_first


def _joined_late(engine: LiveEngine, job: LiveJob, worker: LiveWorker) -> None:
    """It was taken for one that does not join, and its GPU counts as busy: let it begin there,
    before the brain has other plans for it."""
    job.elastic = True
    record = engine.state.records.get(job.id)
    if job.pending is None and record is not None and record.held is not None:
        job.pending = Pending(Kind.START, worker.plan, record.held)
        publish_if_all_joined(engine, job)


def _ready(job: LiveJob, worker: LiveWorker) -> None:
    order = job.pending
    if order is not None and order.kind is Kind.START and order.allocation is not None:
        order.ready.update(worker.gpus)
        if order.ready >= set(order.allocation.gpus):
            job.pending = None


def _switched(job: LiveJob, generation: Generation) -> bool:
    order = job.pending
    if order is not None and order.plan == generation.plan:
        if order.kind is not Kind.RESCALE:
            return False  # a start is told by its workers, one by one
        job.pending = None
    job.generation = max(job.generation, generation)
    return True


def _switch_failed(engine: LiveEngine, job: LiveJob, report: wire.SwitchFailed) -> bool:
    order = job.pending
    if order is None or order.kind is Kind.STOP or report.plan not in (0, order.plan):
        return False
    if order.kind is Kind.RESCALE:
        give_up_rescale(engine, job, report.reason)
        return False
    return True  # of a start: the core stops those who are there
