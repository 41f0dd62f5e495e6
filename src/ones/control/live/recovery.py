"""Matches the log with the processes that the launcher finds after a restart of the controller.

The log has the job of every GPU; the launcher has the running processes and the exits of the
others. A process that is in the log and runs is taken over. If it has ended, its kept reports and
its exit are handled now. A process that is not in the log is stopped.

An order that was being carried out is begun again. That is safe: a launch id starts only once, and
workers handle the order of a plan only once.
"""

from __future__ import annotations

from collections.abc import Mapping

from ones.control import logs
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import LiveJob, LiveWorker, gpu_of, plan_of
from ones.control.persistence import ReportsReceived
from ones.control.submission import Submission
from ones.core.job import JobId
from ones.core.lifecycle import OrderKind
from ones.core.plan import Action, Finish, Rescale, Start, Stop
from ones.core.record import JobRecord
from ones.launchers import Exited, LaunchedProcess, Started

log = logs.logger(__name__)


def take_over(
    engine: LiveEngine,
    submissions: Mapping[str, Submission],
    reports: Mapping[str, ReportsReceived],
) -> None:
    """Take over the processes of an earlier controller.

    To be called in the thread that will run the loop, before the loop runs. `submissions` are by
    job, `reports` by launch.
    """
    live = engine.live
    records, launcher = live.state.records, live.launcher
    for record in records.values():
        live.jobs[record.id] = LiveJob(record.id, submissions[record.id])
    found = launcher.running()
    for process in found.values():
        _add_worker(engine, process, reports)
    alive = {process.job for process in found.values() if process.alive}
    for name in dict.fromkeys(process.job for process in found.values()):
        if JobId(name) not in live.jobs and name not in alive:  # it ended, and nothing is left
            launcher.forget(name)
    for record in records.values():
        order = _order_of(record)
        if order is not None:
            assert record.in_flight is not None
            engine.runner.begin(order, record.in_flight.plan)
    # exits are handled after the orders are begun again, so that they find them
    for process in found.values():
        if process.exit is not None:
            engine.on_launcher(Exited(process.id, process.exit))
        elif process.pid is not None:
            engine.on_launcher(Started(process.id, process.pid))
    live.post(live.free_missing)


def _add_worker(
    engine: LiveEngine, process: LaunchedProcess, reports: Mapping[str, ReportsReceived]
) -> None:
    live = engine.live
    job_id, plan = JobId(process.job), _plan(process)
    mine = [
        gpu
        for gpu in map(gpu_of, process.slots)
        if (occupant := live.state.occupants.get(gpu)) is not None
        and (occupant.job, occupant.plan) == (job_id, plan)
    ]
    if not mine or plan is None:
        if process.alive:
            live.launcher.stop(process.id, 0.0)  # the log does not know it
        return
    job = live.jobs.get(job_id)
    if job is None:  # the job has ended, and its workers were still there
        submission = Submission(name=job_id, argv=("-",), cwd="/")
        job = live.jobs[job_id] = LiveJob(job_id, submission, end_reported=True)
    if job.end_reported and process.alive:
        live.launcher.stop(process.id, 0.0)
    received = reports.get(process.id)
    worker = LiveWorker(process.id, tuple(mine), plan)
    if received is not None:
        worker.heard = worker.safe = received.number
        worker.joined = received.joined
    job.workers[process.id] = worker
    if process.alive:
        # a worker that hung while no controller ran never calls: its time limit begins now
        live.last_call[process.id] = live.clock.monotonic()


def _plan(process: LaunchedProcess) -> int | None:
    """The plan of a launch; None for an unknown directory that a job made beside its launches."""
    try:
        return plan_of(process.id)
    except (IndexError, ValueError):
        log.warning("unknown launch", job=process.job, launch=process.id)
        return None


def _order_of(record: JobRecord) -> Action | None:
    """The action that was being carried out."""
    order = record.in_flight
    if order is None:
        return None
    if record.ending is not None and record.ending.ordered:
        return Finish(record.id, record.ending.reason, record.ending.message)
    match order.kind:
        case OrderKind.START:
            assert order.allocation is not None
            return Start(record.id, order.allocation)
        case OrderKind.RESCALE:
            assert order.allocation is not None
            return Rescale(record.id, order.allocation)
        case OrderKind.STOP:
            return Stop(record.id)
