"""Entries of the log in words, as `ones why` tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ones.core import events as ev
from ones.core.plan import Action, Finish, Plan, Prepare, Rescale, Start, Stop
from ones.core.schedule import Allocation
from ones.runlog import Entry
from ones.stopping import StopReason


def tell(entry: Entry, job: str) -> Iterator[tuple[str, str]]:
    """(what it is, in words) for one job; nothing if the entry is not worth a line."""
    if isinstance(entry, Plan):
        notes: Any = entry.notes
        if job in notes:
            yield "reason", notes[job]
        for action in entry.actions:
            if action.job == job:
                yield "order", tell_action(action)
        return
    told = _WORDS.get(type(entry))
    if told is not None:
        yield told[0], told[1](entry)


#: rules to stop, which the log has in a word
_STOPS = {
    StopReason.TARGET.value: "its target accuracy is exceeded",
    StopReason.PLATEAU.value: "no better epoch for as long as its patience lasts",
    StopReason.EPOCHS.value: "as many epochs as it was to have",
}


def told_end(message: str) -> str:
    """Why a job has ended."""
    return _STOPS.get(message, message)


def tell_action(action: Action) -> str:
    match action:
        case Start():
            return f"starts on {_places(action.allocation)}"
        case Rescale():
            return f"is re-scaled to {_places(action.allocation)}"
        case Prepare():
            return f"will go to {_places(action.allocation)} when they are free"
        case Stop():
            return "is told to save its work and leave"
        case Finish():
            return f"is ended: {told_end(action.message) or action.reason.value}"
        case _:
            return "will not get what was prepared for it"


def _places(allocation: Allocation) -> str:
    gpus = ", ".join(map(str, allocation.gpus))
    batch = f"batch {allocation.batch}" if allocation.batch else "the script's own batch"
    return f"{gpus} with {batch}"


def _submitted(event: ev.JobSubmitted) -> str:
    by = f" by {event.job.owner}" if event.job.owner else ""
    return f"submitted{by}: {' '.join(event.job.command)}"


def _described(event: ev.JobDescribed) -> str:
    megabytes = event.parameter_bytes / 1e6
    return (
        f"joined: {event.dataset_size:,} samples, batch {event.base_batch},"
        f" {megabytes:.1f} MB of parameters"
    )


def _rescaled(event: ev.Rescaled) -> str:
    what = "re-formed after a loss" if event.generation.incarnation else "re-scaled"
    seconds = event.pause_seconds
    for_long = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
    return f"{what}; it stood still for {for_long if seconds >= 0.001 else 'less than 1 ms'}"


def _epoch(event: ev.EpochFinished) -> str:
    numbers = [
        f"{name} {value:.4g}"
        for name, value in (("loss", event.loss), ("accuracy", event.accuracy))
        if value is not None
    ]
    numbers += [f"{name.replace('_', ' ')} is not a finite number" for name in event.not_finite]
    told = f"epoch {event.epoch} done" + (f": {', '.join(numbers)}" if numbers else "")
    diverged = {"loss", "first_loss"} & set(event.not_finite)
    return f"{told} (training may have diverged)" if diverged else told


def _ended(event: ev.JobEnded) -> str:
    why = told_end(event.message)
    return f"ended: {event.reason.value}" + (f" ({why})" if why else "")


def _quarantined(event: ev.EntryQuarantined) -> str:
    kept = "the policy does not see it" if event.policy_only else "it is ignored"
    return f"{event.kind} raised an error and is quarantined ({kept}): {event.reason}"


_WORDS: dict[type[ev.Event], tuple[str, Callable[[Any], str]]] = {
    ev.JobSubmitted: ("submitted", _submitted),
    ev.JobDescribed: ("joined", _described),
    ev.JobFoundFixed: (
        "fixed",
        lambda e: "has not called ones.join within the time: a fixed-size job from now on",
    ),
    ev.WorkerReady: ("ready", lambda e: f"the worker on {e.gpu} trains"),
    ev.WorkerLeft: ("left", lambda e: f"the worker on {e.gpu} has left"),
    ev.WorkerLost: ("lost", lambda e: f"lost the worker on {e.gpu}: {e.reason}"),
    ev.Rescaled: ("rescaled", _rescaled),
    ev.RescaleFailed: ("failed", lambda e: f"the change failed: {e.reason}"),
    ev.EpochFinished: ("epoch", _epoch),
    ev.MemoryLimitLearned: (
        "memory",
        lambda e: f"no more than {e.max_local_batch} samples fit one GPU at once",
    ),
    ev.CancelRequested: ("cancel", lambda e: f"cancelled by {e.by or 'somebody'}"),
    ev.PriorityChanged: ("priority", lambda e: f"its priority is {e.priority:g} now"),
    ev.EntryQuarantined: ("quarantined", _quarantined),
    ev.JobEnded: ("ended", _ended),
}
