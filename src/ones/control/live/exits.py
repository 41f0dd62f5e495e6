"""Handles processes that start and end: did a worker leave, was it lost, or is the job done?"""

from __future__ import annotations

from ones.control import logs
from ones.control.live.action_runner import ActionRunner
from ones.control.live.cordons import Cordons
from ones.control.live.jobs import NOW, LiveJob, LiveWorker
from ones.control.live.live_state import LiveState
from ones.core import events as ev
from ones.core import reasons
from ones.core.job import EndReason, Generation
from ones.core.lifecycle import OrderKind
from ones.exec import Exit

log = logs.logger(__name__)


class ExitHandler:
    def __init__(self, live: LiveState, runner: ActionRunner, cordons: Cordons) -> None:
        self._live, self._runner, self._cordons = live, runner, cordons

    def started(self, launch: str) -> None:
        job, worker = self._live.find(launch)
        if job is not None and worker is not None and not self._live.is_elastic(job):
            self.count_as_ready(job, worker)

    def count_as_ready(self, job: LiveJob, worker: LiveWorker) -> None:
        """Report a worker of a fixed-size job as ready as soon as it runs: it never joins."""
        order = self._live.order(job)
        if order is not None and order.kind is OrderKind.START:
            for gpu in worker.gpus:
                self._live.emit(ev.WorkerReady(NOW, job.id, Generation(order.plan), gpu))

    def exited(self, launch: str, exit: Exit) -> None:
        """Handle the end of a worker's process: none of its child processes is left either."""
        live = self._live
        job, worker = live.find(launch)
        if job is None or worker is None:
            return
        live.forget_worker(job, worker)
        if job.end_reported:
            self._release_quiet(job)
            self._left(job, worker)
            if not job.workers:
                self._runner.forget(job)
            return
        if worker.condemned:
            self.lost(job, worker, worker.condemned)
            return
        order = live.order(job)
        kind = order.kind if order is not None else None
        if exit.cause == "fenced" and kind is OrderKind.START and not self._has_node(worker):
            return  # the loss of its node is reported as well, and abandons the start at no cost
        is_leaving = worker.leaving or kind is OrderKind.STOP
        any_done = any(w.done for w in (worker, *job.quiet, *job.workers.values()))
        if is_leaving and exit.clean and any_done:
            self._exited_quietly(job, worker)  # perhaps the last one
            return
        # stopped from outside or with the machine: not a failure of the job either
        if (is_leaving and exit.clean) or exit.cause in ("stopped", "reboot", "fenced"):
            self._left(job, worker)
            self._give_up_rescale(job, worker, exit.describe())
            self._give_up_start(job, worker, exit.describe())
        elif exit.clean or worker.done:
            self._exited_quietly(job, worker)
        else:
            # no evidence against the GPU: the process never ran, died with its supervisor or had
            # not joined
            joined = worker.joined or not live.is_elastic(job)
            innocent = exit.cause in ("not-started", "lost") or not joined
            if exit.cause == "not-started":
                log.warning("launch failed", job=job.id, launch=launch, reason=exit.describe())
            reason = exit.describe() + reasons.exit_hint(exit.signal)
            self.lost(job, worker, reason, innocent=innocent, signal=exit.signal)

    def _has_node(self, worker: LiveWorker) -> bool:
        """Whether the worker's node is up. A node that was lost and came back while the controller
        was away is not reported as lost."""
        return any(slot.node == worker.gpus[0].node for slot in self._live.launcher.slots())

    def _left(self, job: LiveJob, worker: LiveWorker) -> None:
        generation = self._live.newest_generation(job, worker)
        trained = worker.joined or not self._live.is_elastic(job)
        for gpu in worker.gpus:
            self._cordons.health.did_well(gpu, job.id, trained=trained)
            self._live.emit(ev.WorkerLeft(NOW, job.id, generation, gpu))

    def lost(
        self,
        job: LiveJob,
        worker: LiveWorker,
        reason: str,
        *,
        innocent: bool = False,
        signal: int | None = None,
    ) -> None:
        """Report a lost worker. `innocent`: the GPU is not the cause. `signal`: killed by it."""
        live = self._live
        generation = live.newest_generation(job, worker)
        log.warning("worker lost", job=job.id, plan=worker.plan, node=worker.gpus[0].node,
                    launch=worker.launch, reason=reason)  # fmt: skip
        for gpu in worker.gpus:
            live.emit(ev.WorkerLost(NOW, job.id, generation, gpu, reason))
            if not innocent:
                self._cordons.worker_died(gpu, job.id, signal)
        self._give_up_rescale(job, worker, reason)

    def _give_up_rescale(self, job: LiveJob, worker: LiveWorker, reason: str) -> None:
        """Give up a rescale that cannot be completed without this worker."""
        order = self._live.order(job)
        if order is None or order.kind is not OrderKind.RESCALE:
            return
        # workers that have their Switch continue without it or report the failure, except the last
        is_last = not (job.workers or job.quiet)
        if is_last or (not job.published(order.plan) and order.needs(worker.gpus)):
            self._runner.give_up_rescale(job, reasons.worker_died(worker.name, reason))

    def _give_up_start(self, job: LiveJob, worker: LiveWorker, reason: str) -> None:
        """Give up a start if its workers were stopped from outside before all had joined."""
        order = self._live.order(job)
        if order is not None and order.kind is OrderKind.START and worker.plan == order.plan:
            generation = Generation(order.plan)
            self._live.emit(ev.RescaleFailed(NOW, job.id, generation, reason, harmless=True))

    def done(self, job: LiveJob, worker: LiveWorker) -> bool:
        """Note that a worker reports the job as done. Returns whether no worker trains any more."""
        worker.done = True
        return self._end_if_all_done(job)

    def _end_if_all_done(self, job: LiveJob) -> bool:
        live = self._live
        job.quiet_since = min(job.quiet_since, live.clock.now())
        order = live.order(job)
        # joining workers that have no Switch yet take no part in the job
        coming = None
        if order is not None and order.kind is OrderKind.RESCALE and not job.published(order.plan):
            coming = order.plan
        joining = [w for w in job.workers.values() if w.plan == coming and not w.done]
        # a leaving worker trains until it reports that it leaves, and may report for all
        if not all(w.done or w.parted or w in joining for w in job.workers.values()):
            return False
        self._runner.end(job)
        for worker in joining:
            live.stop(worker)
        return True

    def _exited_quietly(self, job: LiveJob, worker: LiveWorker) -> None:
        """Exit code 0, reported done or without a report: the job is done if all exit so."""
        job.quiet.append(worker)
        if self._end_if_all_done(job):
            self.emit_done(job)

    def emit_done(self, job: LiveJob) -> None:
        live = self._live
        record = live.record(job)
        known = [record.generation] if record is not None else []
        generation = max([*known, *(Generation(worker.plan) for worker in job.quiet)])
        live.emit(ev.JobEnded(NOW, job.id, EndReason.FINISHED, generation=generation))
        self._release_quiet(job)

    def _release_quiet(self, job: LiveJob) -> None:
        quiet, job.quiet = job.quiet, []
        for worker in quiet:
            self._left(job, worker)
