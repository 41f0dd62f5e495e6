"""JobCard, the read model of a job: frozen, and made again after each change of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from ones.control.submission import Submission
from ones.core.cluster import Gpu
from ones.core.job import Job
from ones.core.lifecycle import Phase
from ones.core.reasons import diverged, end_message
from ones.core.record import JobFigures, JobRecord, Outcome
from ones.core.schedule import Allocation
from ones.wire.bounds import shared
from ones.wire.decoding import Decoder
from ones.wire.work import Unit, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    gpu: str
    batch: int
    micro_steps: int = 1
    leaving: bool = False  # the worker still runs and is leaving
    coming: bool = False  # the worker is starting and does not train yet


#: states of jobs that no policy may start: on hold; waiting for other jobs
HELD, BLOCKED = "held", "blocked"
#: states of jobs without GPUs that have not ended
WAITING_STATES = frozenset({Phase.WAITING.value, HELD, BLOCKED})


class JobCard(JobFigures, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec can
    id: str
    name: str
    owner: str
    state: str  # a phase, HELD or BLOCKED, or the end reason
    elastic: bool  # False: fixed-size, because its script does not call ones.join
    kind: str
    command: tuple[str, ...]
    tags: tuple[str, ...]
    priority: float
    min_gpus: int
    max_gpus: int | None
    workers: tuple[WorkerCard, ...]
    batch: int | None  # global, per optimizer step
    planned_epochs: int | None = None  # declared by the user or by the training loop
    dataset_size: int | None
    deadline: float | None = None  # time of the end that the user wishes
    eta: float | None
    eta_low: float | None
    eta_high: float | None
    note: str  # the policy's reason for the current state
    message: str  # why the job ended
    submitted_at: float
    ended_at: float | None
    booked_at: float  # time up to which queue, run and GPU seconds are counted
    on_hold: bool = False
    penalty: float = 0.0  # what past use of its owner takes from its priority
    held_by: str = ""  # the user that put the job on hold
    after: tuple[str, ...] = ()  # unfinished jobs that the job waits for
    array: str = ""  # id of the array that the job is a task of

    @property
    def over(self) -> bool:
        return self.ended_at is not None

    def at(self, now: float) -> dict[str, Any]:
        """The card as plain values, with queue, run and GPU seconds up to `now`."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        del plain["booked_at"]
        plain["gpus"] = len(self.workers)
        if not self.over:
            elapsed = max(0.0, now - self.booked_at)
            plain["run_seconds" if self.workers else "queue_seconds"] += elapsed
            plain["gpu_seconds"] += elapsed * len(self.workers)
        return plain


@dataclass(frozen=True, slots=True)
class WorkerPlaces:
    """The workers of a job by GPU, with the inputs they were computed from.

    Reused while the inputs are the same, because most reports do not change them.
    """

    allocation: Allocation | None
    next: Allocation | None  # the allocation that the job changes to
    occupied: frozenset[Gpu]
    workers: tuple[WorkerCard, ...]
    batch: int | None  # global, per optimizer step

    @classmethod
    def of(cls, record: JobRecord, last: WorkerPlaces | None) -> WorkerPlaces:
        coming = record.in_flight.allocation if record.in_flight is not None else None
        shown = record.held if record.held is not None else coming
        if (
            last is not None
            and last.allocation is shown
            and last.next is coming
            and last.occupied == record.occupied
        ):
            return last
        there = {w.gpu: w for w in shown.workers} if shown is not None else {}
        awaited = coming.gpus if coming is not None else ()
        workers = tuple(
            WorkerCard(
                gpu=str(gpu),
                batch=there[gpu].batch if gpu in there else 0,
                micro_steps=there[gpu].micro_steps if gpu in there else 1,
                leaving=gpu not in there and gpu not in awaited,
                coming=gpu not in there and gpu in awaited,
            )
            for gpu in sorted(record.occupied)
        )
        batch = (shown.batch or None) if shown is not None else None
        return cls(shown, coming, frozenset(record.occupied), workers, batch)


def card_of(
    record: JobRecord, places: WorkerPlaces, submission: Submission | None, *, elastic: bool
) -> JobCard:
    """The card of a job that has not ended."""
    job = record.job
    # a forecast assumes that the job runs
    forecast = record.forecast if record.phase is not Phase.WAITING else None
    figures = shared(record, JobFigures)
    figures["samples"] += record.epoch_samples
    figures["work"] = _work_of(record)
    return JobCard(
        id=job.id,
        name=submission.name if submission else job.id,
        owner=job.owner,
        state=_state(record),
        elastic=elastic,
        kind=job.kind,
        command=job.command,
        tags=submission.tags if submission else (),
        priority=record.priority,
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        workers=places.workers,
        batch=places.batch,
        planned_epochs=job.epochs,
        dataset_size=record.description.dataset_size if record.description else None,
        deadline=None if job.deadline is None else job.submitted_at + job.deadline,
        eta=forecast.eta if forecast else None,
        eta_low=forecast.low if forecast else None,
        eta_high=forecast.high if forecast else None,
        note=with_warning(record.note, record.diverged_epoch),
        message=end_message(record.ending.message) if record.ending else "",
        submitted_at=job.submitted_at,
        ended_at=None,
        booked_at=record.since,
        on_hold=record.on_hold,
        penalty=record.penalty,
        held_by=record.held_by,
        after=tuple(dependency.job for dependency in record.awaits),
        array=job.array,
        **figures,
    )


def _work_of(record: JobRecord) -> Work:
    """Progress in the unit of the job, up to the limit of its stop rule."""
    work = record.work or Work(Unit.EPOCHS, record.epochs, record.job.epochs)
    limit = record.job.stop.limit(work.unit)
    if limit is None or (work.total is not None and work.total <= limit):
        return work
    return replace(work, total=limit)


def _state(record: JobRecord) -> str:
    if record.phase is Phase.WAITING and record.blocked:
        return HELD if record.on_hold else BLOCKED
    return record.phase.shown


def card_of_ended(
    outcome: Outcome,
    submission: Submission | None,
    last: JobCard | None,
    *,
    elastic: bool,
    request: Job | None = None,
) -> JobCard:
    """The card of an ended job. `last`: its last card before the end; `request`: for a job that
    ended at once, as a refused one does, and never had a card.

    The outcome has precedence over `last`, which may lack the last epoch.
    """
    figures = shared(outcome, JobFigures)
    known = last or request
    deadline = last.deadline if last else None
    if last is None and request is not None and request.deadline is not None:
        deadline = outcome.submitted_at + request.deadline
    if last is not None:  # outcomes written by earlier versions lack some figures
        for name in ("loss", "accuracy", "step_seconds"):
            figures[name] = getattr(last, name) if figures[name] is None else figures[name]
        figures["failures"] = max(outcome.failures, last.failures)
    epochs = Work(Unit.EPOCHS, outcome.epochs, last.planned_epochs if last else None)
    figures["work"] = outcome.work or epochs
    if last is not None and last.work is not None and outcome.work is not None:
        figures["work"] = replace(outcome.work, total=last.work.total)  # up to its stop rule
    return JobCard(
        id=outcome.id,
        name=submission.name if submission else last.name if last else outcome.id,
        owner=outcome.owner,
        state=outcome.reason.value,
        elastic=last.elastic if last else elastic,
        kind=outcome.kind,
        command=submission.argv if submission else last.command if last else (),
        tags=submission.tags if submission else last.tags if last else (),
        priority=known.priority if known else 0.0,
        min_gpus=known.min_gpus if known else 1,
        max_gpus=known.max_gpus if known else None,
        workers=(),
        batch=last.batch if last else None,
        planned_epochs=last.planned_epochs if last else None,
        dataset_size=last.dataset_size if last else None,
        deadline=deadline,
        eta=None,
        eta_low=None,
        eta_high=None,
        note="",
        message=with_warning(end_message(outcome.message), outcome.diverged_epoch),
        submitted_at=outcome.submitted_at,
        ended_at=outcome.ended_at,
        booked_at=outcome.ended_at,
        array=known.array if known else "",
        **figures,
    )


def with_warning(text: str, diverged_epoch: int) -> str:
    """The text after a warning if the loss of the job is not finite."""
    return f"{diverged(diverged_epoch)} {text}".rstrip() if diverged_epoch else text


_CARDS: Decoder[JobCard] = Decoder(JobCard, logs=True)


def card_from(text: str) -> JobCard:
    """The card that was stored as `text`. Raises CodecError if it cannot be read."""
    return _CARDS.decode(text)
