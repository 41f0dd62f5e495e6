"""Reports that a worker left in its run directory because the controller was away when it ended.

They are heard before the exit is told, so that a job shows its last epoch and accuracy. The file is
written by the training process, and every line is checked as if it came over HTTP: it must be a
valid `Reports` message, of the job and the worker that the launch belongs to. Numbers make each
report count once, also if the controller had heard it before it went away.
"""

from __future__ import annotations

from functools import partial

from ones.control import logs
from ones.control.live.departures import exited
from ones.control.live.engine import LiveEngine
from ones.control.live.hearing import hear
from ones.control.live.jobs import LiveJob, LiveWorker
from ones.launchers import Exited, LauncherEvent, SupportsKeptReports
from ones.wire import CodecError, Reports, unpack

#: lines of one file; a worker writes up to 500 reports to a line
MOST_LINES = 10_000

log = logs.logger(__name__)


def on_launcher(engine: LiveEngine, event: LauncherEvent) -> None:
    """In any thread, in place of `engine.on_launcher`."""
    kept = _kept(engine, event.id) if isinstance(event, Exited) else b""
    if isinstance(event, Exited) and kept:
        engine.post(partial(_reports_and_exit, engine, event, kept))
    else:
        engine.on_launcher(event)


def _reports_and_exit(engine: LiveEngine, event: Exited, kept: bytes) -> None:
    """In one go: no decision comes between them."""
    hear_kept(engine, event.id, kept)
    exited(engine, event.id, event.exit)


def _kept(engine: LiveEngine, launch: str) -> bytes:
    job, launcher = launch.split("~", maxsplit=1)[0], engine.launcher
    if not isinstance(launcher, SupportsKeptReports):
        return b""
    try:
        return launcher.reports(job, launch)
    except Exception:
        log.exception("kept reports not read", job=job, launch=launch)
        return b""


def hear_kept(engine: LiveEngine, launch: str, kept: bytes) -> None:
    """In the brain's thread."""
    job, worker = engine.find(launch)
    if job is None or worker is None:
        return
    heard = worker.heard
    for line in kept.split(b"\n")[:MOST_LINES]:
        if not line:
            continue
        try:
            hear(engine, engine.store, _checked(line, job, worker), lambda problem: None)
        except Exception as problem:
            why = f"{type(problem).__name__}: {problem}"[:200]
            log.warning("kept report refused", job=job.id, launch=launch, reason=why)
            break
    if worker.heard > heard:
        log.info("kept reports heard", job=job.id, launch=launch, reports=worker.heard - heard)


def _checked(line: bytes, job: LiveJob, worker: LiveWorker) -> Reports:
    message = unpack(line)
    if not isinstance(message, Reports):
        raise CodecError("type", "Reports are expected here")
    names = [str(gpu) for gpu in worker.gpus]
    if message.job != job.id or message.worker not in names or job.on(worker.gpus[0]) is not worker:
        raise CodecError("worker", f"{message.worker!r} of job {message.job!r} is not its writer")
    if message.plan < worker.plan:
        raise CodecError("plan", f"{message.plan} is older than the worker's, {worker.plan}")
    return message
