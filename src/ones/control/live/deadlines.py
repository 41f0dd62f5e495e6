"""Acts on orders that take too long, workers that hang and jobs that exceed their run time."""

from __future__ import annotations

from math import inf

from ones.control.live.action_runner import ActionRunner
from ones.control.live.exits import ExitHandler
from ones.control.live.jobs import NOW, LiveJob
from ones.control.live.live_state import LiveState
from ones.core import events as ev
from ones.core import reasons
from ones.core.job import Generation
from ones.core.lifecycle import OrderKind
from ones.core.record import InFlight


class DeadlineChecker:
    """Checks all jobs about once a second."""

    def __init__(self, live: LiveState, runner: ActionRunner, exits: ExitHandler) -> None:
        self._live, self._runner, self._exits = live, runner, exits

    def check(self, now: float) -> None:
        for job in list(self._live.jobs.values()):
            try:
                self._check_job(job, now)
            except Exception as problem:
                self._live.contain(job.id, problem)

    def _check_job(self, job: LiveJob, now: float) -> None:
        order, progress = self._live.order(job), job.progress
        if progress is not None and now >= progress.deadline:
            progress.deadline = inf
            if job.end_reported or (order is not None and order.kind is OrderKind.STOP):
                for worker in job.workers.values():
                    self._live.stop(worker)
            elif order is not None and order.plan == progress.plan:
                self._give_up(job, order)
            elif order is None and progress.late:
                self._restart(job)
        # processes of a fixed-size job on other nodes may have more to do than those that exited
        may_decide = self._live.is_elastic(job) and not job.end_reported
        if may_decide and now - job.quiet_since > self._live.timeouts.quiet_seconds:
            self._decide_quiet(job)
        self._check_silence(job)
        self._check_run_time(job, now)

    def _give_up(self, job: LiveJob, order: InFlight) -> None:
        live = self._live
        if job.published(order.plan):
            self._restart(job)
        elif order.kind is OrderKind.RESCALE:
            why = reasons.joining_timed_out(live.timeouts.join_seconds)
            self._runner.give_up_rescale(job, why)
        elif len(job.workers) == 1 and not any(w.joined for w in job.workers.values()):
            # it runs and does not join: a fixed-size job
            live.emit(ev.JobFoundFixed(NOW, job.id, Generation(order.plan)))
            self._exits.count_as_ready(job, next(iter(job.workers.values())))
        else:
            why = reasons.start_timed_out(live.timeouts.join_seconds)
            live.emit(ev.RescaleFailed(NOW, job.id, Generation(order.plan), why))

    def _restart(self, job: LiveJob) -> None:
        """Some workers may have switched and others not: restart from the checkpoint."""
        why = reasons.switch_timed_out(self._live.timeouts.switch_seconds)
        for worker in job.workers.values():
            self._live.condemn(worker, why)

    def _decide_quiet(self, job: LiveJob) -> None:
        """Some workers exited without a report long ago, and others still train: end the job if a
        worker has reported that it is done, else count those that exited as lost."""
        job.quiet_since = inf
        if any(w.done for w in (*job.quiet, *job.workers.values())):
            self._runner.end(job)
            self._exits.emit_done(job)
            return
        quiet, job.quiet = job.quiet, []
        for worker in quiet:
            self._exits.lost(job, worker, reasons.ENDED_ALONE, innocent=True)

    def _check_silence(self, job: LiveJob) -> None:
        live = self._live
        seconds = live.timeouts.silence_seconds
        for worker in job.workers.values():
            called_at = live.last_call.get(worker.launch)
            if not worker.joined or called_at is None or worker.leaving:
                continue
            if live.clock.monotonic() - called_at > seconds:
                live.last_call.pop(worker.launch)
                live.condemn(worker, reasons.silent(seconds))

    def _check_run_time(self, job: LiveJob, now: float) -> None:
        limit = job.submission.max_run_seconds
        record = self._live.record(job)
        if limit is None or job.overdue or record is None:
            return
        ran = record.run_seconds + (now - record.since if record.occupied else 0.0)
        if ran > limit:
            job.overdue = True
            self._live.emit(ev.CancelRequested(NOW, job.id, reasons.time_limit(limit)))
