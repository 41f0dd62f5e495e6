"""What is done about those who do not do what they should in time."""

from __future__ import annotations

from math import inf

from ones.control.live.departures import count_as_ready, lost, say_done
from ones.control.live.floor import Floor
from ones.control.live.jobs import NOW, Kind, LiveJob, Pending
from ones.control.live.orders import end, give_up_rescale
from ones.core import events as ev
from ones.core.job import Generation


def look_round(floor: Floor, now: float) -> None:
    """Once in a while."""
    for job in list(floor.jobs.values()):
        try:
            _look_at(floor, job, now)
        except Exception as problem:
            floor.contain(job.id, problem)


def _look_at(floor: Floor, job: LiveJob, now: float) -> None:
    if job.pending is not None and now >= job.pending.deadline:
        _run_out_of_patience(floor, job, job.pending)
    if now - job.quiet_since > floor.patience.quiet_seconds and not job.ended:
        _decide_who_is_right(floor, job)
    _look_for_silence(floor, job)
    _look_at_run_time(floor, job, now)


def _run_out_of_patience(floor: Floor, job: LiveJob, order: Pending) -> None:
    order.deadline = inf
    if order.kind is Kind.STOP:
        for worker in job.workers.values():
            floor.launcher.stop(worker.launch, floor.patience.grace_seconds)
    elif order.published:
        # it may have switched or not: nobody can say, so it begins again from its checkpoint
        why = f"a switch did not come together within {floor.patience.switch_seconds:g} s"
        for worker in job.workers.values():
            floor.condemn(worker, why)
        job.pending = None
    elif order.kind is Kind.RESCALE:
        seconds = floor.patience.join_seconds
        give_up_rescale(floor, job, f"newcomers did not join within {seconds:g} s")
    elif len(job.workers) == 1 and not any(w.joined for w in job.workers.values()):
        job.elastic = False  # it runs, and does not join: a fixed-size job
        floor.say(ev.JobFoundFixed(NOW, job.id, Generation(order.plan)))
        count_as_ready(floor, job, next(iter(job.workers.values())))
    else:
        why = f"its workers did not all join within {floor.patience.join_seconds:g} s"
        floor.say(ev.RescaleFailed(NOW, job.id, Generation(order.plan), why))


def _decide_who_is_right(floor: Floor, job: LiveJob) -> None:
    """Some workers were done long ago, others go on."""
    job.quiet_since = inf
    if not any(w.done for w in (*job.quiet, *job.workers.values())):
        quiet, job.quiet = job.quiet, []
        for worker in quiet:
            why = "it ended by itself while the others went on"
            lost(floor, job, worker, why, our_doing=True)
    else:
        end(floor, job)
        say_done(floor, job)


def _look_for_silence(floor: Floor, job: LiveJob) -> None:
    for worker in job.workers.values():
        heard_at = floor.last_word.get(worker.launch)
        if not worker.joined or heard_at is None or worker.leaving:
            continue
        if floor.clock.monotonic() - heard_at > floor.patience.silence_seconds:
            floor.last_word.pop(worker.launch)
            floor.condemn(worker, f"silent for {floor.patience.silence_seconds:g} s")


def _look_at_run_time(floor: Floor, job: LiveJob, now: float) -> None:
    limit = job.submission.max_run_seconds
    record = floor.state.records.get(job.id)
    if limit is None or job.overdue or record is None:
        return
    ran = record.run_seconds + (now - record.since if record.occupied else 0.0)
    if ran > limit:
        job.overdue = True
        by = f"its time limit of {limit:g} s"
        floor.say(ev.CancelRequested(NOW, job.id, by))
