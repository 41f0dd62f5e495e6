"""History from the run log: lines and curves of a job, and the decisions for all jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from msgspec.structs import replace

from ones.control.readmodels.entry_texts import HistoryReader, Shown, change_text
from ones.control.schema import log, mentions
from ones.control.store import Store
from ones.core import events as ev
from ones.core.job import Job
from ones.core.plan import Action, Finish, Plan, Rescale, Start, Stop
from ones.core.reason_markers import render
from ones.runlog import Entry, Header, decode

T = TypeVar("T")

#: maximum number of plans that are read to find those with actions or notes
MOST_LOOKED_AT = 20_000


@dataclass(frozen=True, slots=True)
class Line:
    number: int  # of the entry in the log
    at: float
    kind: str
    text: str


def entries_of(
    store: Store, job: str, *, after: int = 0, before: int | None = None, limit: int = 1000
) -> list[tuple[int, Entry]]:
    """The newest `limit` entries that name a job, oldest first."""
    query = (
        sa.select(log.c.number, log.c.entry)
        .join(mentions, mentions.c.number == log.c.number)
        .where(mentions.c.job == job, mentions.c.number > after)
        .order_by(log.c.number.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(log.c.number < before)
    return [(row.number, _entry(row.entry)) for row in reversed(store.rows(query))]


def requested(store: Store, job: str) -> Job | None:
    """The request of a job with later changes of users; None: it is not in the log any more."""
    query = (
        sa.select(log.c.entry)
        .join(mentions, mentions.c.number == log.c.number)
        .where(mentions.c.job == job, log.c.kind.in_(("JobSubmitted", "JobChanged")))
        .order_by(log.c.number)
    )
    found: Job | None = None
    for row in store.rows(query):
        match _entry(row.entry):
            case ev.JobSubmitted() as event:
                found = event.job
            case ev.JobChanged() as event if found is not None:
                most = found.max_gpus if event.max_gpus is None else event.max_gpus or None
                changed = {"priority": event.priority, "min_gpus": event.min_gpus}
                given = {name: value for name, value in changed.items() if value is not None}
                found = replace(found, max_gpus=most, **given)
            case _:
                pass
    return found


def decisions(
    store: Store,
    shown: Shown = render,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int = 50,
    some: bool = False,
) -> Iterator[dict[str, Any]]:
    """Plans with their notes, newest first.

    Without `some`: the newest `limit` plans. With `some`: only plans with actions or notes (a plan
    may have forecasts only), `limit` per query, until the caller stops reading.
    """
    looked_at = 0
    while True:
        query = sa.select(log.c.number, log.c.entry).where(
            log.c.kind == "Plan", log.c.number > after
        )
        if before is not None:
            query = query.where(log.c.number < before)
        rows = store.rows(query.order_by(log.c.number.desc()).limit(limit))
        for row in rows:
            plan = _decision(row.number, _entry(row.entry), shown)
            if not some or plan["actions"] or plan["notes"]:
                yield plan
        looked_at += len(rows)
        if not some or len(rows) < limit or looked_at >= MOST_LOOKED_AT:
            return
        before = rows[-1].number


def _decision(number: int, plan: Entry, shown: Shown) -> dict[str, Any]:
    assert isinstance(plan, Plan)
    return {
        "number": number,
        "plan": plan.number,
        "at": plan.at,
        "actions": [
            {"job": job, "text": change_text(plan, job, shown)}
            for job in dict.fromkeys(action.job for action in plan.actions)
        ],
        "notes": {job: shown(note) for job, note in plan.notes.items()},
        "forecasts": {
            j: {"eta": f.eta, "low": f.low, "high": f.high} for j, f in plan.forecasts.items()
        },
    }


def story(store: Store, job: str, limit: int = 1000, shown: Shown = render) -> list[Line]:
    """The history of a job: a line for each change, with its reason."""
    reader = HistoryReader(job, shown)
    return [
        Line(number, entry.at, kind, text)
        for number, entry in entries_of(store, job, limit=limit)
        for kind, text in reader.lines(entry)
    ]


def curves(store: Store, job: str, limit: int = 20_000) -> dict[str, list[list[float]]]:
    """(time, value) points of loss, accuracy, batch, GPUs and samples per second, by curve."""
    found: dict[str, list[list[float]]] = {name: [] for name in CURVES}
    plotter = CurveReader(job)
    for _, entry in entries_of(store, job, limit=limit):
        for name, value in plotter.points(entry):
            found[name].append([entry.at, value])
    return found


def thinned(values: list[T], most: int) -> list[T]:
    """At most about `most` of the values, always with the last one.

    >>> thinned([1, 2, 3, 4, 5, 6, 7], 3), thinned([1, 2], 3)
    ([1, 4, 7], [1, 2])
    """
    step = -(-len(values) // most)
    return values if step <= 1 else [*values[:-1:step], values[-1]]


CURVES = ("loss", "accuracy", "batch", "gpus", "throughput")


class CurveReader:
    """Converts the entries of a job, from its first one on, to points of its curves."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._batch_is_known = False

    def points(self, entry: Entry) -> Iterator[tuple[str, float]]:
        """(curve, value) of each point that an entry adds."""
        match entry:
            case ev.EpochFinished():
                if entry.loss is not None:
                    yield "loss", entry.loss
                if entry.accuracy is not None:
                    yield "accuracy", entry.accuracy
                if entry.step_seconds and entry.steps:
                    yield "throughput", entry.samples / entry.steps / entry.step_seconds
            case ev.ThroughputMeasured():
                yield "throughput", entry.configuration.batch / entry.step_seconds
            case ev.JobDescribed() if not self._batch_is_known:
                yield "batch", entry.base_batch  # the plan has no batch: the script's own counts
                self._batch_is_known = True
            case Plan():
                for action in entry.actions:
                    if action.job == self._job:
                        yield from self._ordered(action)
            case ev.JobEnded():
                yield "gpus", 0
            case _:
                pass

    def _ordered(self, action: Action) -> Iterator[tuple[str, float]]:
        if isinstance(action, Start | Rescale):
            yield "gpus", action.allocation.n_gpus
            if action.allocation.batch:
                yield "batch", action.allocation.batch
                self._batch_is_known = True
        elif isinstance(action, Stop | Finish):
            yield "gpus", 0


def _entry(text: str) -> Entry:
    entry = decode(text)
    assert not isinstance(entry, Header)
    return entry
