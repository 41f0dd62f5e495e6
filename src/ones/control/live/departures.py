"""Processes that start and end, as the launcher tells it: did one leave, was it lost, or is the
job done?"""

from __future__ import annotations

from ones.control import logs
from ones.control.live.asides import died_on
from ones.control.live.floor import Floor
from ones.control.live.jobs import NOW, Kind, LiveJob, LiveWorker
from ones.control.live.orders import end, forget, give_up_rescale
from ones.core import events as ev
from ones.core.job import EndReason, Generation
from ones.exec import Exit

log = logs.logger(__name__)


def started(floor: Floor, launch: str) -> None:
    job, worker = floor.find(launch)
    if job is None or worker is None or job.elastic:
        return
    count_as_ready(floor, job, worker)


def count_as_ready(floor: Floor, job: LiveJob, worker: LiveWorker) -> None:
    """A script that does not join trains as soon as it runs, for all we know."""
    if job.pending is not None and job.pending.kind is Kind.START:
        generation = Generation(job.pending.plan)
        for gpu in worker.gpus:
            floor.say(ev.WorkerReady(NOW, job.id, generation, gpu))
        job.pending = None


def exited(floor: Floor, launch: str, exit: Exit) -> None:
    """Nothing of it is left. Did it leave, was it lost, or is the job done?"""
    job, worker = floor.find(launch)
    if job is None or worker is None:
        return
    del job.workers[launch]
    worker.alive = False
    floor.mailbox.drop(launch)
    floor.last_word.pop(launch, None)
    if job.ended:
        _let_quiet_ones_leave(floor, job)
        _left(floor, job, worker)
        if not job.workers:
            forget(floor, job)
        return
    if worker.condemned:
        lost(floor, job, worker, worker.condemned)
        return
    is_starting = job.pending is not None and job.pending.kind is Kind.START
    if exit.cause == "fenced" and is_starting and not _has_node(floor, worker):
        return  # the loss of its node is told as well: the start is given up with it, at no cost
    told = worker.leaving or (job.pending is not None and job.pending.kind is Kind.STOP)
    if told and exit.clean and any(w.done for w in (worker, *job.quiet, *job.workers.values())):
        _left_quietly(floor, job, worker)  # the last one that was waited for?
        return
    # stopped by somebody beside us, or with the machine: that costs no try either
    if (told and exit.clean) or exit.cause in ("stopped", "reboot", "fenced"):
        _left(floor, job, worker)
        _give_up_what_needs_it(floor, job, worker, exit.describe())
        _give_up_a_start(floor, job, worker, exit.describe())
    elif exit.clean or worker.done:
        _left_quietly(floor, job, worker)
    else:
        # what was never there, went down with its parent or had not joined says nothing of the GPU
        innocent = exit.cause in ("not-started", "lost") or (job.elastic and not worker.joined)
        if exit.cause == "not-started":
            log.warning("launch failed", job=job.id, launch=launch, reason=exit.describe())
        lost(floor, job, worker, exit.describe(), our_doing=innocent, signal=exit.signal)


def _has_node(floor: Floor, worker: LiveWorker) -> bool:
    """A node that was lost and is back, while the controller was away, is not told as lost."""
    return any(slot.node == worker.gpus[0].node for slot in floor.launcher.slots())


def _left(floor: Floor, job: LiveJob, worker: LiveWorker) -> None:
    generation = _newest(job, worker)
    for gpu in worker.gpus:
        floor.suspicion.did_well(gpu, job.id, trained=worker.joined or not job.elastic)
        floor.say(ev.WorkerLeft(NOW, job.id, generation, gpu))


def lost(
    floor: Floor,
    job: LiveJob,
    worker: LiveWorker,
    reason: str,
    *,
    our_doing: bool = False,
    signal: int | None = None,
) -> None:
    """`our_doing`: nothing there can be blamed on its GPU. `signal`: that killed it."""
    generation = _newest(job, worker)
    log.warning("worker lost", job=job.id, plan=worker.plan, node=worker.gpus[0].node,
                launch=worker.launch, reason=reason)  # fmt: skip
    for gpu in worker.gpus:
        floor.say(ev.WorkerLost(NOW, job.id, generation, gpu, reason))
        if not our_doing:
            died_on(floor, gpu, job.id, signal)
    _give_up_what_needs_it(floor, job, worker, reason)


def _give_up_what_needs_it(floor: Floor, job: LiveJob, worker: LiveWorker, reason: str) -> None:
    order = job.pending
    if order is None or order.kind is not Kind.RESCALE:
        return
    # those who were told go on without it, or say that it failed: but for the last of them
    is_last = not (job.workers or job.quiet)
    if is_last or (not order.published and order.needs(worker.gpus)):
        give_up_rescale(floor, job, f"worker {worker.name} died: {reason}")


def _give_up_a_start(floor: Floor, job: LiveJob, worker: LiveWorker, reason: str) -> None:
    """Its workers were stopped by somebody beside us before all had come."""
    order = job.pending
    if order is not None and order.kind is Kind.START and worker.plan == order.plan:
        job.pending = None
        failed = ev.RescaleFailed(NOW, job.id, Generation(order.plan), reason, harmless=True)
        floor.say(failed)


def done(floor: Floor, job: LiveJob, worker: LiveWorker) -> bool:
    """A worker says that the job is done. It is when all say so: the one that reports for all
    may be the last."""
    worker.done = True
    return _done_if_all_are(floor, job)


def _done_if_all_are(floor: Floor, job: LiveJob) -> bool:
    job.quiet_since = min(job.quiet_since, floor.clock.now())
    order = job.pending
    # who was still on the way in has no part in it
    unpublished = order is not None and order.kind is Kind.RESCALE and not order.published
    coming = order.plan if order is not None and unpublished else None
    newcomers = [w for w in job.workers.values() if w.plan == coming and not w.done]
    # one that was told to leave trains until it says so: it may be the one that reports for all
    if not all(w.done or w.parted or w in newcomers for w in job.workers.values()):
        return False
    end(floor, job)
    for worker in newcomers:
        floor.launcher.stop(worker.launch, floor.patience.grace_seconds)
    return True


def _left_quietly(floor: Floor, job: LiveJob, worker: LiveWorker) -> None:
    """Exit code 0, said to be done or without a word: the job is done if all go so."""
    job.quiet.append(worker)
    if _done_if_all_are(floor, job):
        say_done(floor, job)


def say_done(floor: Floor, job: LiveJob) -> None:
    generation = max([job.generation, *(Generation(w.plan) for w in job.quiet)])
    floor.say(ev.JobEnded(NOW, job.id, EndReason.FINISHED, generation=generation))
    _let_quiet_ones_leave(floor, job)


def _let_quiet_ones_leave(floor: Floor, job: LiveJob) -> None:
    quiet, job.quiet = job.quiet, []
    for worker in quiet:
        _left(floor, job, worker)


def _newest(job: LiveJob, worker: LiveWorker) -> Generation:
    """A generation that is not older than the one that put the worker where it is."""
    return max(job.generation, Generation(worker.plan))
