"""Reports that a worker left in its run directory because the controller was away when it ended.

They are handled before the exit, so that a job shows its last epoch and accuracy. The file is
written by the training process, and every line is checked as if it came over HTTP: it must be a
valid `Reports` message of the job and the worker that the launch belongs to. Each report has a
number and is handled once, also if the controller had handled it before it stopped.
"""

from __future__ import annotations

from functools import partial

from ones.control import logs
from ones.control.live.jobs import LiveJob, LiveWorker, job_of
from ones.control.live.live_state import LiveState
from ones.control.live.report_handlers import ReportHandler
from ones.launchers import Launcher, SupportsKeptReports
from ones.wire import CodecError, Reports, unpack

#: maximum number of lines that are read of a file; a worker writes up to 500 reports to a line
MOST_LINES = 10_000

log = logs.logger(__name__)


def read_kept(launcher: Launcher, launch: str) -> bytes:
    """The file of a launch, for any thread; empty if there is none."""
    job = job_of(launch)
    if not isinstance(launcher, SupportsKeptReports):
        return b""
    try:
        return launcher.reports(job, launch)
    except Exception:
        log.exception("kept reports not read", job=job, launch=launch)
        return b""


def handle_kept(live: LiveState, reports: ReportHandler, launch: str, kept: bytes) -> None:
    """Handle the kept reports of a launch. To be called in the scheduler's thread."""
    job, worker = live.find(launch)
    if job is None or worker is None:
        return
    heard = worker.heard
    for line in kept.split(b"\n")[:MOST_LINES]:
        if not line:
            continue
        try:
            reports.handle(_checked(line, job, worker), lambda problem: None)
        except Exception as problem:
            why = f"{type(problem).__name__}: {problem}"[:200]
            log.warning("kept report refused", job=job.id, launch=launch, reason=why)
            break
    live.next_tasks.append(partial(_log_handled, job, worker, heard))


def _log_handled(job: LiveJob, worker: LiveWorker, before: int) -> None:
    if worker.heard > before:
        count = worker.heard - before
        log.info("kept reports heard", job=job.id, launch=worker.launch, reports=count)


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
