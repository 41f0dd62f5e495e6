"""Log entries as lines of a job's history: one line for each change, with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from ones.core import events as ev
from ones.core import reasons
from ones.core.plan import Action, Finish, Plan, Prepare, Rescale, Start, Stop, Withdraw
from ones.core.reason_markers import render
from ones.core.schedule import Allocation
from ones.core.user_units import duration, gpu_names, gpus, size
from ones.runlog import Entry

#: shows a stored reason to one reader
Shown = Callable[[str], str]

#: kinds of lines that are details of a change: another line reports the change itself
MINOR = ("epoch", "ready", "left", "rescaled", "step")


class HistoryReader:
    """Converts the log entries of one job, in order, to lines of its history."""

    def __init__(self, job: str, shown: Shown = render) -> None:
        self._job, self._shown = job, shown
        self._announced: Allocation | None = None  # the allocation that a plan has prepared
        self._last_reason = ""
        self._starting = False

    def lines(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """(kind, text) of each line of an entry; some entries have none."""
        if isinstance(entry, Plan):
            yield from self._plan(entry)
            return
        if isinstance(entry, ev.WorkerReady | ev.Rescaled):
            self._starting = False
        if isinstance(entry, ev.RescaleFailed):
            what = "Start" if self._starting else "Change"
            yield "failed", f"{what} failed: {entry.reason}."
            return
        known = _TEXTS.get(type(entry))
        if known is not None:
            yield known[0], known[1](entry)

    def _plan(self, plan: Plan) -> Iterator[tuple[str, str]]:
        actions = [action for action in plan.actions if action.job == self._job]
        target = _target(actions)
        is_second_step = target is not None and target == self._announced
        if target is not None:
            prepares = any(isinstance(action, Prepare) for action in actions)
            self._announced = target if prepares else None
        self._starting |= any(isinstance(action, Start) for action in actions)
        text = change_text(plan, self._job, self._shown)
        if text and actions:
            yield "step" if is_second_step or _ends(actions) else "order", text
            self._last_reason = text
        elif text and text != self._last_reason:
            yield "reason", text
            self._last_reason = text


def change_text(plan: Plan, job: str, shown: Shown) -> str:
    """What a plan changes for a job, and why; empty if it changes nothing."""
    notes: Any = plan.notes
    note = shown(notes[job]) if job in notes else ""
    actions = [action for action in plan.actions if action.job == job]
    target = _target(actions)
    if target is None:
        orders = [_order_text(action) for action in actions]
        return note or " ".join(filter(None, orders))
    if note:
        text = _with_gpus(note, target)
    else:
        text = f"{'Started' if _starts(actions) else 'Continues'} on {_gpus_and_batch(target)}."
    if any(isinstance(action, Prepare) for action in actions):
        text = f"{text} The change waits until these GPUs are free."
    return text


def _target(actions: list[Action]) -> Allocation | None:
    """The allocation that the actions lead to."""
    found = None
    for action in actions:
        if isinstance(action, Prepare):
            return action.allocation
        if isinstance(action, Start | Rescale):
            found = action.allocation
    return found


def _starts(actions: list[Action]) -> bool:
    return any(isinstance(action, Start) for action in actions)


def _ends(actions: list[Action]) -> bool:
    return any(isinstance(action, Finish) for action in actions)


def _order_text(action: Action) -> str:
    match action:
        case Stop():
            return "Stopped: its workers save their work and leave."
        case Finish():
            why = reasons.end_message(action.message)
            return f"Ends ({action.reason.value})" + (f": {why}" if why else ".")
        case Withdraw():
            return "The planned change is withdrawn: its GPUs are not available."
        case _:
            return ""


def _with_gpus(note: str, target: Allocation) -> str:
    """The note with the names of the target's GPUs.

    >>> from ones.core import Gpu, NodeId
    >>> two = Allocation.even([Gpu(NodeId("n1"), i) for i in (0, 1)], 64, None)
    >>> _with_gpus("Started on 2 GPUs, batch 64: it was next.", two)
    'Started on 2 GPUs (n1/0-1), batch 64: it was next.'
    >>> _with_gpus("my own words", two)
    '2 GPUs (n1/0-1), batch 64: my own words'
    """
    gpus = re.compile(rf"\b{target.n_gpus} (?:other )?GPUs?\b")
    named, found = gpus.subn(rf"\g<0> ({gpu_names(target.gpus)})", note, count=1)
    return named if found else f"{_gpus_and_batch(target)}: {note}"


def _gpus_and_batch(target: Allocation) -> str:
    batch = f", batch {target.batch}" if target.batch else ""
    number = "1 GPU" if target.n_gpus == 1 else f"{target.n_gpus} GPUs"
    return f"{number} ({gpu_names(target.gpus)}){batch}"


def _by(user: str) -> str:
    return f" by {user}" if user else ""


def changes_of(event: ev.JobChanged) -> list[str]:
    """What a user changed, as text."""
    found = [] if event.priority is None else [f"priority {event.priority:g}"]
    if event.min_gpus is not None:
        found.append(f"at least {gpus(event.min_gpus)}")
    if event.max_gpus is not None:
        found.append(f"at most {gpus(event.max_gpus)}" if event.max_gpus else "no maximum of GPUs")
    return [*found, *event.other]


def _submitted(event: ev.JobSubmitted) -> str:
    return f"Submitted{_by(event.job.owner)}: {' '.join(event.job.command)}"


def _described(event: ev.JobDescribed) -> str:
    return (
        f"Joined: {event.dataset_size:,} samples, batch {event.base_batch},"
        f" {size(event.parameter_bytes)} of parameters."
    )


def _rescaled(event: ev.Rescaled) -> str:
    what = "Continued with the remaining workers" if event.generation.incarnation else "Rescaled"
    return f"{what} ({duration(event.pause_seconds)} pause)."


def _epoch(event: ev.EpochFinished) -> str:
    numbers = [
        f"{name} {value:.4g}"
        for name, value in (("loss", event.loss), ("accuracy", event.accuracy))
        if value is not None
    ]
    numbers += [f"{name.replace('_', ' ')} is not a finite number" for name in event.not_finite]
    text = f"Epoch {event.epoch} done" + (f": {', '.join(numbers)}" if numbers else "")
    diverged = {"loss", "first_loss"} & set(event.not_finite)
    return f"{text} (training may have diverged)" if diverged else text


def _ended(event: ev.JobEnded) -> str:
    why = reasons.end_message(event.message)
    return f"Ended: {event.reason.value}." + (f" {why}" if why else "")


def _quarantined(event: ev.EntryQuarantined) -> str:
    kept = "the policy does not see it" if event.policy_only else "it is ignored"
    return f"{event.kind} raised an error and is quarantined ({kept}): {event.reason}"


_TEXTS: dict[type[ev.Event], tuple[str, Callable[[Any], str]]] = {
    ev.JobSubmitted: ("submitted", _submitted),
    ev.JobDescribed: ("joined", _described),
    ev.JobFoundFixed: ("fixed", lambda e: reasons.FOUND_FIXED),
    ev.WorkerReady: ("ready", lambda e: f"The worker on {e.gpu} trains."),
    ev.WorkerLeft: ("left", lambda e: f"The worker on {e.gpu} has left."),
    ev.WorkerLost: ("lost", lambda e: f"Lost the worker on {e.gpu}: {e.reason}."),
    ev.Rescaled: ("rescaled", _rescaled),
    ev.EpochFinished: ("epoch", _epoch),
    ev.TrainingRestarted: ("restarted", lambda e: reasons.began_again(e.epochs)),
    ev.TrackerLinked: ("tracker", lambda e: f"Its run in the tracker: {e.url}"),
    ev.MemoryLimitLearned: ("memory", lambda e: reasons.memory_limit(e.max_local_batch)),
    ev.CancelRequested: ("cancel", lambda e: f"{reasons.cancelled(e.by)}."),
    ev.PriorityChanged: ("priority", lambda e: f"Priority {e.priority:g} from now on."),
    ev.JobChanged: ("changed", lambda e: f"Changed{_by(e.by)}: {', '.join(changes_of(e))}."),
    ev.JobHeld: ("held", lambda e: f"Put on hold{_by(e.by)}."),
    ev.JobReleased: ("released", lambda e: f"Released{_by(e.by)}."),
    ev.JobWarned: ("warning", lambda e: f"Warning: {e.text}"),
    ev.EntryQuarantined: ("quarantined", _quarantined),
    ev.JobEnded: ("ended", _ended),
}
