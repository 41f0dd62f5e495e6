"""After a restart: what the log says and what the launcher finds become one again.

The log knows who should be on which GPU; the launcher knows what lives, and how what does
not live has ended. Known and alive: adopted. Known and gone: told now, as it would have
been told then, after the reports that it left behind. Unknown: stopped. An order that was being
carried out is begun again: every launch has its id and starts once, every order to workers has its
plan and is taken once.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from ones.control import logs
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import LAST, LiveJob, LiveWorker, gpu_of, plan_of
from ones.control.live.kept_reports import on_launcher
from ones.control.live.orders import begin
from ones.control.schema import heard
from ones.control.store import Store
from ones.control.submission import Submission, submissions_of
from ones.core.job import JobId
from ones.core.plan import Action, Finish, Rescale, Start, Stop
from ones.core.record import JobRecord, OrderKind
from ones.core.state import State
from ones.launchers import Exited, LaunchedProcess, Started
from ones.launchers.api import Launcher

log = logs.logger(__name__)


def adopt(engine: LiveEngine, state: State, store: Store, launcher: Launcher) -> None:
    """To be called in the thread that will turn the loop, before it does."""
    known = submissions_of(store, state.records)
    for record in state.records.values():
        job = LiveJob(record.id, known[record.id], record.generation, record.description)
        job.elastic = record.job.elastic
        engine.jobs[record.id] = job
    found = launcher.running()
    reports = {row.launch: row for row in store.rows(sa.select(heard))}
    for process in found.values():
        _take_in(engine, state, launcher, process, reports)
    alive = {process.job for process in found.values() if process.alive}
    for name in dict.fromkeys(process.job for process in found.values()):
        if JobId(name) not in engine.jobs and name not in alive:  # it ended, and all is told
            launcher.forget(name)
    for job_id, record in state.records.items():
        order = _order_of(record)
        if order is not None:
            assert record.in_flight is not None
            job = engine.jobs[job_id]  # one that ends and has no workers is gone after `begin`
            begin(engine, order, record.in_flight.plan)
            if job.pending is not None:
                job.pending.ready |= record.ready
    # what ended meanwhile is told after the orders stand again, so that it finds them
    for process in found.values():
        if process.exit is not None:
            on_launcher(engine, Exited(process.id, process.exit))
        elif process.pid is not None:
            engine.on_launcher(Started(process.id, process.pid))
    engine.post(engine.free_missing)


def _take_in(
    engine: LiveEngine,
    state: State,
    launcher: Launcher,
    process: LaunchedProcess,
    reports: Mapping[str, sa.Row[tuple[str, str, int, bool]]],
) -> None:
    job_id, plan = JobId(process.job), _plan(process)
    gpus = tuple(map(gpu_of, process.slots))
    mine = [
        gpu
        for gpu in gpus
        if (occupant := state.occupants.get(gpu)) is not None
        and (occupant.job, occupant.plan) == (job_id, plan)
    ]
    if not mine or plan is None:
        if process.alive:
            launcher.stop(process.id, 0.0)  # nobody knows of it
        return
    job = engine.jobs.get(job_id)
    if job is None:  # it has ended, and its workers were still there
        job = LiveJob(job_id, Submission(name=job_id, argv=("-",), cwd="/"), LAST, ended=True)
        engine.jobs[job_id] = job
    if job.ended and process.alive:
        launcher.stop(process.id, 0.0)
    row = reports.get(process.id)
    worker = LiveWorker(process.id, tuple(mine), plan)
    if row is not None:
        worker.heard = worker.safe = row.number
        worker.joined = row.joined
    job.workers[process.id] = worker


def _plan(process: LaunchedProcess) -> int | None:
    """None: it is no launch of ours. A job can make directories beside those of its launches."""
    try:
        return plan_of(process.id)
    except (IndexError, ValueError):
        log.warning("unknown launch", job=process.job, launch=process.id)
        return None


def _order_of(record: JobRecord) -> Action | None:
    """What was being carried out, as it was ordered."""
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
