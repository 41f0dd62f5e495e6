"""Handles worker reports: updates the processes of the job and emits scheduler events.

Every report has its number and is handled once. It is acknowledged when its event and its number
are on disk; a report that comes again after a crash is recognised by its number. The reports of a
message are handled one by one, each after the event of the one before was applied, so that `State`
is never behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from ones.control.live.action_runner import ActionRunner
from ones.control.live.exits import ExitHandler
from ones.control.live.gpu_health import GpuHealth
from ones.control.live.jobs import NOW, LiveJob, LiveWorker, gpu_of
from ones.control.live.live_state import LiveState
from ones.control.live.report_events import event_of
from ones.control.persistence import Done, ReportsReceived
from ones.core import events as ev
from ones.core.job import Generation, JobId
from ones.core.lifecycle import OrderKind
from ones.errors import BugError, described
from ones.wire import Reports
from ones.wire import messages as wire


@dataclass(slots=True)
class _Batch:
    """A message that is being handled."""

    message: Reports
    job: LiveJob
    worker: LiveWorker
    done: Done
    next: int = 0
    #: to be written with the next event
    operations: list[ReportsReceived] = field(default_factory=list)


class ReportHandler:
    def __init__(
        self, live: LiveState, runner: ActionRunner, exits: ExitHandler, health: GpuHealth
    ) -> None:
        self._live, self._runner, self._exits, self._health = live, runner, exits, health

    def handle(self, message: Reports, done: Done) -> None:
        """Handle a message. To be called in the scheduler's thread.

        `done` is called when all reports of the message are stored.
        """
        job = self._live.jobs.get(JobId(message.job))
        worker = job.on(gpu_of(message.worker)) if job is not None else None
        if job is None or worker is None or message.plan < worker.plan:
            self._live.store.write(done=done)
            return
        batch = _Batch(message, job, worker, done)
        self._live.next_tasks.append(partial(self._continue, batch))

    def _continue(self, batch: _Batch) -> None:
        """Handle the next report of a message."""
        try:
            if batch.next < len(batch.message.reports):
                self._handle_next(batch)
            else:
                self._live.store.write(operations=batch.operations, done=self._acknowledge(batch))
        except Exception as problem:
            job = batch.message.job
            self._live.contain(JobId(job), problem)
            batch.done(
                BugError(f"job {job}: its report could not be handled: {described(problem)}")
            )

    def _handle_next(self, batch: _Batch) -> None:
        live, job, worker, message = self._live, batch.job, batch.worker, batch.message
        number, report = message.first + batch.next, message.reports[batch.next]
        batch.next += 1
        event = None
        if number > worker.heard:
            worker.heard = number
            live.deps.on_report(message, report)
            generation = Generation(message.plan, message.incarnation)
            if not job.end_reported and self._update(job, worker, generation, report):
                event = self._event(job, worker, generation, report)
            received = ReportsReceived(worker.launch, job.id, number, worker.joined)
            batch.operations.append(received)
        if event is not None:
            operations, batch.operations = batch.operations, []
            if batch.next == len(message.reports):
                live.emit(event, operations, self._acknowledge(batch))
                return
            live.emit(event, operations)
        live.next_tasks.appendleft(partial(self._continue, batch))

    def _event(
        self, job: LiveJob, worker: LiveWorker, generation: Generation, report: wire.Report
    ) -> ev.Event | None:
        lost = self._lost_epochs(job, report)
        if lost is not None:
            return ev.TrainingRestarted(NOW, job.id, generation, lost)
        event = event_of(report, job.id, worker.gpus[0], generation, self._live.order(job))
        record = self._live.record(job)
        if isinstance(event, ev.JobDescribed) and record and job.submission.fixed_batch:
            batch = record.job.requested_batch or event.base_batch
            return replace(event, min_batch=batch, max_batch=batch)
        return event

    def _acknowledge(self, batch: _Batch) -> Done:
        worker, message = batch.worker, batch.message
        last = max(worker.heard, message.first + len(message.reports) - 1)

        def safe(problem: Exception | None) -> None:
            if problem is None:
                worker.safe = max(worker.safe, last)
            batch.done(problem)

        return safe

    def _update(
        self, job: LiveJob, worker: LiveWorker, generation: Generation, report: wire.Report
    ) -> bool:
        """Update the processes. Returns whether the scheduler gets an event."""
        if isinstance(report, wire.Ready | wire.Steps | wire.Epoch | wire.Switched):
            self._trains(job, worker)
        match report:
            case wire.Joined():
                return self._joined(job, worker, report)
            case wire.Switched():
                order = self._live.order(job)
                if self._lost_epochs(job, report) is not None:
                    return True
                # the workers of a start report one by one
                return order is None or order.plan != generation.plan or order.kind is not _START
            case wire.SwitchFailed():
                return self._switch_failed(job, report)
            case wire.Leaving():
                worker.parted = True
                if report.done:
                    return self._exits.done(job, worker)
                worker.leaving = True
            case wire.StoreStarted():
                job.store = report.address
                for launch in job.workers:  # workers that wait for the address get it now
                    self._live.mailbox.nudge(launch)
            case wire.Hung():
                other = job.on(gpu_of(report.worker))
                if other is not None:
                    self._live.condemn(other, "it did not answer the other workers")
            case _:
                pass
        return True

    def _trains(self, job: LiveJob, worker: LiveWorker) -> None:
        self._health.trains(worker.gpus[0], job.id)
        if job.progress is not None and job.progress.late:
            job.progress = None

    def _joined(self, job: LiveJob, worker: LiveWorker, report: wire.Joined) -> bool:
        live = self._live
        record = live.record(job)
        if worker.joined:  # described again
            known = None if record is None else record.description
            return known is not None and known.dataset_size != report.dataset_size
        worker.joined = True
        job.join_seconds = max(job.join_seconds, live.clock.now() - worker.since)
        if record is not None and not record.job.elastic:
            self._runner.publish_late(job, worker.plan, record, report)
        # after the event, by which the state knows the batch
        live.post(partial(self._runner.publish_if_all_joined, job), job.id)
        return record is not None and record.description is None

    def _lost_epochs(self, job: LiveJob, report: wire.Report) -> int | None:
        """The epochs of a job that begins at step 0 although it has trained; None: it does not."""
        record = self._live.record(job)
        if record is None:
            return None
        if isinstance(report, wire.Steps | wire.Epoch):
            # a fixed-size job has no Switched; one process reports its epochs in order
            starts_again = not self._live.is_elastic(job) and report.epoch == 1
            return record.epochs if starts_again and record.epochs else None
        if not isinstance(report, wire.Switched) or report.step != 0:
            return None
        has_trained = record.epochs or record.steps or record.epoch_steps
        return record.epochs if has_trained else None

    def _switch_failed(self, job: LiveJob, report: wire.SwitchFailed) -> bool:
        order = self._live.order(job)
        if order is None or order.kind is OrderKind.STOP or report.plan not in (0, order.plan):
            return False
        if order.kind is OrderKind.RESCALE:
            self._runner.give_up_rescale(job, report.reason)
            return False
        return True  # of a start: the core stops the other workers


_START = OrderKind.START
