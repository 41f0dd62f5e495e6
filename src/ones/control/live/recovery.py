"""Matches the log with the processes that the launcher finds after a restart of the controller.

The log knows which job should be on which GPU; the launcher knows which processes live and how the
others ended. Known and alive: taken over. Known and gone: its kept reports and its exit are handled
now. Unknown: stopped. An order that was being carried out is begun again: a launch has its id and
starts once, an order to workers has its plan and is handled once.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from ones.control import logs
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import LiveJob, LiveWorker, gpu_of, plan_of
from ones.control.schema import heard
from ones.control.submission import Submission, submissions_of
from ones.core.job import JobId
from ones.core.lifecycle import OrderKind
from ones.core.plan import Action, Finish, Rescale, Start, Stop
from ones.core.record import JobRecord
from ones.launchers import Exited, LaunchedProcess, Started

log = logs.logger(__name__)


def take_over(engine: LiveEngine) -> None:
    """To be called in the thread that will run the loop, before it does."""
    live = engine.live
    records, launcher = live.state.records, live.launcher
    known = submissions_of(live.store, records)
    for record in records.values():
        live.jobs[record.id] = LiveJob(record.id, known[record.id])
    found = launcher.running()
    reports = {row.launch: row for row in live.store.rows(sa.select(heard))}
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
    engine: LiveEngine,
    process: LaunchedProcess,
    reports: Mapping[str, sa.Row[tuple[str, str, int, bool]]],
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
    row = reports.get(process.id)
    worker = LiveWorker(process.id, tuple(mine), plan)
    if row is not None:
        worker.heard = worker.safe = row.number
        worker.joined = row.joined
    job.workers[process.id] = worker


def _plan(process: LaunchedProcess) -> int | None:
    """None: not a launch of ours. A job can make directories beside those of its launches."""
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
