"""A job as it is shown: one frozen card, made anew whenever the scheduler has touched the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ones.control.readmodels.entry_texts import told_end
from ones.control.submission import Submission
from ones.core.cluster import Gpu
from ones.core.record import JobFigures, JobRecord, Outcome
from ones.core.schedule import Allocation
from ones.wire.bounds import shared
from ones.wire.decoding import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    gpu: str
    batch: int
    micro_steps: int = 1
    leaving: bool = False  # still there, and on its way out
    coming: bool = False  # being started: the job does not train with it yet


class JobCard(JobFigures, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec can
    id: str
    name: str
    owner: str
    state: str  # a phase, or how it ended
    elastic: bool  # False: fixed-size, for its script does not call ones.join
    kind: str
    command: tuple[str, ...]
    tags: tuple[str, ...]
    priority: float
    min_gpus: int
    max_gpus: int | None
    workers: tuple[WorkerCard, ...]
    batch: int | None  # global, per optimizer step
    planned_epochs: int | None = None  # declared by the user, or by the loop
    dataset_size: int | None
    eta: float | None
    eta_low: float | None
    eta_high: float | None
    note: str  # why it is as it is, in the policy's words
    message: str  # why it ended
    submitted_at: float
    ended_at: float | None
    booked_at: float  # queue, run and GPU seconds are booked up to here

    @property
    def over(self) -> bool:
        return self.ended_at is not None

    def at(self, now: float) -> dict[str, Any]:
        """As plain values, with times booked up to now."""
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
    """Who of a job is where: kept with what it was made of, for most reports change nothing of
    it."""

    allocation: Allocation | None
    next: Allocation | None  # that it changes to
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
    record: JobRecord, seats: WorkerPlaces, submission: Submission | None, *, elastic: bool
) -> JobCard:
    """Of a job that has not ended."""
    job, forecast = record.job, record.forecast
    figures = shared(record, JobFigures)
    figures["samples"] += record.epoch_samples
    return JobCard(
        id=job.id,
        name=submission.name if submission else job.id,
        owner=job.owner,
        state=record.phase.shown,
        elastic=elastic,
        kind=job.kind,
        command=job.command,
        tags=submission.tags if submission else (),
        priority=record.priority,
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        workers=seats.workers,
        batch=seats.batch,
        planned_epochs=job.epochs,
        dataset_size=record.description.dataset_size if record.description else None,
        eta=forecast.eta if forecast else None,
        eta_low=forecast.low if forecast else None,
        eta_high=forecast.high if forecast else None,
        note=record.note,
        message=told_end(record.ending.message) if record.ending else "",
        submitted_at=job.submitted_at,
        ended_at=None,
        booked_at=record.since,
        **figures,
    )


def card_of_ended(
    outcome: Outcome, submission: Submission | None, last: JobCard | None, *, elastic: bool
) -> JobCard:
    """Of a job that has. `last`: its card before that, if it was seen alive: its last epoch may
    have come after that."""
    figures = shared(outcome, JobFigures)
    if last is not None:  # outcomes of earlier versions lack some
        for name in ("loss", "accuracy", "step_seconds"):
            figures[name] = getattr(last, name) if figures[name] is None else figures[name]
        figures["failures"] = max(outcome.failures, last.failures)
    return JobCard(
        id=outcome.id,
        name=submission.name if submission else last.name if last else outcome.id,
        owner=outcome.owner,
        state=outcome.reason.value,
        elastic=last.elastic if last else elastic,
        kind=outcome.kind,
        command=submission.argv if submission else last.command if last else (),
        tags=submission.tags if submission else last.tags if last else (),
        priority=last.priority if last else 0.0,
        min_gpus=last.min_gpus if last else 1,
        max_gpus=last.max_gpus if last else None,
        workers=(),
        batch=last.batch if last else None,
        planned_epochs=last.planned_epochs if last else None,
        dataset_size=last.dataset_size if last else None,
        eta=None,
        eta_low=None,
        eta_high=None,
        note="",
        message=told_end(outcome.message),
        submitted_at=outcome.submitted_at,
        ended_at=outcome.ended_at,
        booked_at=outcome.ended_at,
        **figures,
    )


_CARDS: Decoder[JobCard] = Decoder(JobCard, logs=True)


def card_from(text: str) -> JobCard:
    """As it was kept; a CodecError if it cannot be read."""
    return _CARDS.decode(text)
