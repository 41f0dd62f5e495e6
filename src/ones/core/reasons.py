"""Catalogue of the messages that explain decisions, waits and failures to users.

One function returns one message: what happened, why, what happens next, what the user can do.
Policies store decisions as notes; the service stores failures. Other jobs are references
(`reason_markers`), and no message contains a remaining time: readers see the live forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ones.core.reason_markers import (
    RUNNING,
    job_references,
    policy_position,
    queue_position,
    time_until,
)
from ones.core.schedule import Allocation
from ones.core.user_units import counted, duration, gpus, speed_change
from ones.stopping import StopReason

_Job = TypeVar("_Job", bound=str)
_Place = TypeVar("_Place")

#: number of waiting jobs with a stored position; notes of all would let the log grow without end
NUMBERED_PLACES = 20
#: first words of the notes of jobs without GPUs
WAITING, PREEMPTED = "Waiting", "Preempted"

# why: the last part of a decision's message, after the colon

SOONER, HIGHER_PRIORITY = "finish sooner", "have a higher priority"
SHORTER_FIRST = "shorter jobs have precedence"
SHORTER_OR_OLDER_FIRST = "shorter or older jobs have precedence"
PRIORITY_FIRST = "jobs of higher priority have precedence"
FIXED_SIZE = "it has a fixed size, and enough GPUs were free"
NOT_MEASURED = "its speed is not measured yet"
CHOSEN_BY_NETWORK = "chosen by the learned policy"
ONE_JOB_AT_A_TIME = "the learned policy decides about one job at a time"
NO_FREE_GPU = "no GPU is free"
BETTER_GOODPUT = "the new batch has a better goodput"
OTHERS_GAIN_MORE = "other jobs gain more from the GPUs"
FASTER_WITH_FEWER = "it trains faster with fewer GPUs"


def precedence(
    ahead: int, *, shorter: bool, competing: int, shared_gpus: int, gains: bool = False
) -> str:
    """The place of a job among those that compete for GPUs.

    `ahead`: jobs that come first; `shorter`: all of them have less work left. `gains`: the job
    gets GPUs, although some come first.
    """
    shared = f"the {shared_gpus} shared GPUs" if shared_gpus > 1 else "the one shared GPU"
    if competing == 1:
        return f"no other job competes for {shared}"
    if not ahead:
        return f"it is first of {competing} jobs for {shared}"
    if gains:
        return f"it is number {ahead + 1} of {competing} jobs for {shared}"
    jobs = counted(ahead, "shorter job" if shorter else "job")
    return f"{jobs} {'has' if ahead == 1 else 'have'} precedence for {shared}"


# decisions


def started(n_gpus: int, batch: int, why: str) -> str:
    return f"Started on {gpus(n_gpus)}{_batch(batch)}: {why}."


def resized(
    before: int, after: int, batch: int, why: str, *, speed: float = 0.0, pause: float = 0.0
) -> str:
    """`speed`: new speed relative to the old one. `pause`: seconds. 0: not known."""
    what = "Grown" if after > before else "Shrunk"
    effect = _effect(speed, pause)
    return f"{what} from {before} to {gpus(after)}{_batch(batch)}{effect}: {why}."


def moved(n_gpus: int, batch: int, why: str, *, speed: float = 0.0, pause: float = 0.0) -> str:
    other = "1 other GPU" if n_gpus == 1 else f"{n_gpus} other GPUs"
    return f"Moved to {other}{_batch(batch)}{_effect(speed, pause)}: {why}."


def rebatched(
    before: int, after: int, n_gpus: int, why: str, *, speed: float = 0.0, pause: float = 0.0
) -> str:
    return f"Batch {before} -> {after}{_effect(speed, pause)}. Stays on {gpus(n_gpus)}: {why}."


def changed(
    before: Allocation | None,
    after: Allocation,
    why: str,
    *,
    speed: float = 0.0,
    pause: float = 0.0,
) -> str:
    """The message for a new allocation: started, rebatched, moved, grown or shrunk."""
    size, batch = after.n_gpus, after.batch
    if before is None:
        return started(size, batch, why)
    if before.gpus == after.gpus:
        return rebatched(before.batch, batch, size, why, speed=speed, pause=pause)
    if before.n_gpus == size:
        return moved(size, batch, why, speed=speed, pause=pause)
    return resized(before.n_gpus, size, batch, why, speed=speed, pause=pause)


def batch_limit(limit: int) -> str:
    return f"its batch limit is {limit:,} for now"


def preempted(jobs: Sequence[str], why: str = "") -> str:
    """`jobs`: those that got the GPUs."""
    rest = "Its work is saved; it resumes when GPUs are free"
    if not jobs:
        return f"{PREEMPTED}: {why or 'its GPUs are needed by other jobs'}. {rest}."
    which = f", which {_verb(why, len(jobs))}" if why else ""
    return f"{PREEMPTED}: made room for {job_references(jobs)}{which}. {rest}."


def takers(lost: Iterable[_Place], given: Mapping[_Job, Iterable[_Place]]) -> list[str]:
    """The jobs that got these GPUs; without any, the jobs that a decision gives GPUs to."""
    gone = set(lost)
    found: list[str] = [job for job, places in given.items() if not gone.isdisjoint(places)]
    return found or list(given)


def equal_share(shared_gpus: int, jobs: int) -> str:
    return f"an equal share of {gpus(shared_gpus)} among {counted(jobs, 'job')}"


def best_goodput(jobs: int, n_gpus: int) -> str:
    return f"the best total goodput for {counted(jobs, 'job')} on {gpus(n_gpus)}"


def largest_saving(minimum: int, seconds: float) -> str:
    """`seconds`: what the job's GPUs save it, compared with its minimum number; 0: it has only
    these."""
    if not seconds > 0:
        return "its minimum; each further GPU goes where it saves the most time"
    saved = f"about {duration(seconds)} compared with {gpus(minimum)}"
    return f"each GPU goes where it saves the most time, here {saved}"


# waiting


def waiting_far_behind(rule: str, needs: int) -> str:
    """For jobs beyond the first `NUMBERED_PLACES`: a text that stays the same."""
    return (
        f"{WAITING} for {gpus(needs)}: {rule}. More than {NUMBERED_PLACES} waiting jobs come first."
        f"{RUNNING}"
    )


def waiting_not_worth(position: int) -> str:
    return (
        f"{WAITING}: preempting a running job for it would cost more time than it saves."
        f"{policy_position(position)}"
    )


def waiting_too_large(needs: int) -> str:
    return (
        f"{WAITING}: needs {gpus(needs)} at the same time, and fewer can be shared now. The others"
        " are out of service or used by jobs that cannot shrink."
    )


def waiting_over_limit(needs: int) -> str:
    return (
        f"{WAITING}: needs {gpus(needs)}, more than a policy setting or the rest of its owner's"
        " limit allows. If no job of the owner ends, submit it with a smaller --min-gpus."
    )


def on_hold(by: str, job: str) -> str:
    """`by`: the user that put it on hold."""
    return f"On hold{f', by {by}' if by else ''}. It can start again after: ones release {job}"


def waiting_for_jobs(jobs: Sequence[str]) -> str:
    what = "the end of another job" if not jobs else f"the end of {job_references(jobs)}"
    return f"{WAITING} for {what}."


def waiting_in_array(array: str, limit: int) -> str:
    return f"{WAITING}: at most {counted(limit, 'task')} of array {array} may run at a time."


def dependency_lost(job: str, reason: str) -> str:
    """`reason`: how the other job ended; empty: it is not known."""
    what = f"has ended: {reason}" if reason else "is not known"
    return f"It can never start, because {job} {what} (--after {job})"


def past_use(owner: str, gpu_seconds: float, ratio: float) -> str:
    """A sentence for waiting jobs of an owner that has used more GPU time than others lately.

    >>> past_use("ann", 432_000.0, 3.04)
    "Past use of ann's jobs counts as 120 GPU hours, 3.0x an equal share: users with less go first."
    """
    hours = (
        f"{gpu_seconds / 3600.0:,.3g}" if gpu_seconds < 3.6e6 else f"{gpu_seconds / 3600.0:,.0f}"
    )
    return (
        f"Past use of {owner}'s jobs counts as {hours} GPU hours, {ratio:.1f}x an equal share:"
        " users with less go first."
    )


def waiting_for_owner(owner: str, limit: int, holds: int, needs: int) -> str:
    """The jobs of its owner have all GPUs, or too many, that they may have together."""
    if needs > limit:
        return (
            f"{WAITING}: needs {gpus(needs)}, but the limit of {owner} is {limit}. Submit it with"
            " fewer GPUs, or ask an admin for a higher limit."
        )
    more = f"; this job needs {needs}" if needs > 1 else ""
    return (
        f"{WAITING}: {owner} may use {gpus(limit)} and uses {holds}{more}. It starts when another"
        f" job of {owner} ends."
    )


def waiting_for_gpus(needs: int) -> str:
    """For policies that start jobs in the order of the queue."""
    together = " at the same time" if needs > 1 else ""
    return f"{WAITING}: needs {gpus(needs)}{together}.{RUNNING}{queue_position(needs)}"


def waiting_behind(needs: int) -> str:
    """For jobs that no decision has explained: no GPU can be shared, or the job is new."""
    return f"{WAITING} for {gpus(needs)}.{RUNNING}{queue_position(needs)}"


def waiting_by_rule(rule: str, needs: int, position: int = 0) -> str:
    """`rule`: which jobs the policy prefers. `position`: in its order; 0: not known."""
    where = policy_position(position) if position else ""
    return f"{WAITING} for {gpus(needs)}: {rule}.{RUNNING}{where}"


def waiting_for_round(at: float, needs: int) -> str:
    return f"{WAITING}: GPUs are assigned in the next round{time_until(at)}.{queue_position(needs)}"


PAUSED_FOR_ROUND = "Paused: all jobs pause while the GPUs are assigned anew. It resumes in seconds."


def waiting_for_turn(turn: float) -> str:
    return f"{WAITING} for its turn of {duration(turn)}: jobs share the GPUs equally.{RUNNING}"


def keeps_after_failure(n_gpus: int) -> str:
    return (
        f"Keeps {gpus(n_gpus)}: its last change failed. The next try is after a pause, which"
        " doubles with each failure."
    )


# failures: what happened, why, what the user can do


def failed(job: str, why: str, tries: int, allowed: int) -> str:
    """The job's last message after its last try."""
    rest = "no tries are left" if allowed > 1 else "submit it with --retries to allow more"
    return f"{why}. Try {tries} of {allowed}: {rest}. Its output: ones logs {job}"


ALL_WORKERS_DIED = "All its workers died"


def last_worker_died(reason: str) -> str:
    return f"Its last worker died: {reason}"


def start_failed(reason: str) -> str:
    return f"Its start failed: {reason}"


def worker_died(worker: str, reason: str) -> str:
    return f"worker {worker} died: {reason}"


def node_gone(node: str) -> str:
    return f"node {node} is gone"


def joining_timed_out(seconds: float) -> str:
    return f"new workers did not call ones.join within {duration(seconds)}"


def start_timed_out(seconds: float) -> str:
    return f"its workers did not all call ones.join within {duration(seconds)}"


def switch_timed_out(seconds: float) -> str:
    return f"its workers did not connect to each other within {duration(seconds)}"


def silent(seconds: float) -> str:
    return f"no report for {duration(seconds)}: the worker hangs or lost its network"


ENDED_ALONE = "the worker ended while the others continued: do all workers run the same epochs?"
NOT_FOUND = "its process was not found after the controller had restarted"


def refused(value: float, price: float) -> str:
    """`value`: the most that the job's result is worth at any end; `price`: of the GPUs for it."""
    worth = f"{value:.3g}" if value >= 0.001 else "0"
    return (
        f"Refused: the GPUs that it needs cost {price:.3g} now, more than its value of {worth}."
        " Submit it later, with a higher priority, or with a later deadline."
    )


REFUSED_TOO_LONG = (
    "Refused: it cannot end within the planned time. Submit it with more GPUs, or when fewer jobs"
    " are planned."
)


def cancelled(by: str) -> str:
    return f"Cancelled by {by}" if by else "Cancelled"


def time_limit(seconds: float) -> str:
    """The argument of `cancelled` for a job that has run for longer than it may."""
    return f"its time limit of {duration(seconds)} (--max-run)"


def idle_limit(seconds: float) -> str:
    """The argument of `cancelled` for a job that left its GPUs idle for too long."""
    return f"the limit of {duration(seconds)} for idle GPUs (setting idle_end_minutes)"


def idle_workers(slots: Sequence[str], workers: int, seconds: float, end_seconds: float) -> str:
    """`workers`: of the job. `end_seconds`: a job of which all are idle is ended; 0: never."""
    which = "Its GPU" if workers == 1 else f"Of its {gpus(workers)}, {len(slots)}"
    text = f"{which} {_has(len(slots))} been idle for {duration(seconds)}: {_some(slots)}."
    if not end_seconds:
        return text
    return f"{text} A job that leaves all its GPUs idle is ended after {duration(end_seconds)}."


def slow_workers(slowdowns: Mapping[str, float], seconds: float) -> str:
    """`slowdowns`: own step time of each slow worker, relative to that of its peers."""
    workers = "A worker" if len(slowdowns) == 1 else f"{len(slowdowns)} workers"
    which = _some([f"{slot} ({slowdown:.1f} times)" for slot, slowdown in slowdowns.items()])
    taken = f"{_has(len(slowdowns))} taken longer for a step than the others"
    return f"{workers} {taken} for {duration(seconds)}: {which}."


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def _some(names: Sequence[str]) -> str:
    """
    >>> _some(["a", "b"]), _some(list("abcdefgh"))
    ('a, b', 'a, b, c, d, e and 3 more')
    """
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def quarantined(kind: str, reason: str) -> str:
    return (
        f"The service could not handle its event {kind}: {reason}. The event is quarantined"
        " (ones doctor); submit the job again"
    )


FOUND_FIXED = (
    "The script has not called ones.join in time: from now on it is a fixed-size job on its GPU."
)


def began_again(epochs: int) -> str:
    lost = f"{counted(epochs, 'epoch')} done before" if epochs else "what was done before"
    return f"Training began again from the start: no checkpoint was found. Lost: {lost}."


def diverged(epoch: int) -> str:
    return f"The loss is not a finite number since epoch {epoch}: training may have diverged."


def memory_limit(samples: int) -> str:
    return f"At most {samples:,} samples fit on one GPU at once."


def end_message(message: str) -> str:
    """The message at the end of a job. The log stores a stop rule as one word."""
    return _STOP_RULES.get(message, message)


_STOP_RULES = {
    StopReason.TARGET.value: "The target accuracy is reached.",
    StopReason.PLATEAU.value: "The accuracy has not improved within the patience of its stop rule.",
    StopReason.EPOCHS.value: "All epochs of its stop rule are done.",
    StopReason.STEPS.value: "All steps of its stop rule are done.",
    StopReason.SAMPLES.value: "All samples of its stop rule are done.",
    StopReason.TOKENS.value: "All tokens of its stop rule are done.",
}


def exit_hint(signal: int | None) -> str:
    """What a signal usually means.

    >>> exit_hint(9), exit_hint(None)
    (' (often: out of memory)', '')
    """
    return f" ({hint})" if signal is not None and (hint := _SIGNALS.get(signal)) else ""


_SIGNALS = {
    4: "illegal instruction: built for another CPU",
    6: "aborted by a library",
    7: "bus error: often no space in /dev/shm",
    9: "often: out of memory",
    11: "segmentation fault in a library",
    15: "terminated from outside",
}


def _batch(batch: int) -> str:
    return f", batch {batch}" if batch else ""


def _effect(speed: float, pause: float) -> str:
    parts = [speed_change(speed)] if speed else []
    parts += [f"{duration(pause)} pause"] if pause >= 0.01 else []
    return f" ({', '.join(parts)})" if parts else ""


def _verb(why: str, number: int) -> str:
    """
    >>> _verb("finish sooner", 1), _verb("have a higher priority", 1), _verb("finish sooner", 2)
    ('finishes sooner', 'has a higher priority', 'finish sooner')
    """
    if number > 1:
        return why
    verb, _, rest = why.partition(" ")
    return f"{'has' if verb == 'have' else verb + 'es'} {rest}"
