"""A job's past in words and in curves, from what the log says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ones.control.readmodels.words import tell, tell_action
from ones.control.schema import log, mentions
from ones.control.store import Store
from ones.core import events as ev
from ones.core.plan import Finish, Plan, Rescale, Start, Stop
from ones.runlog import Entry, Header, decode


@dataclass(frozen=True, slots=True)
class Line:
    number: int  # of the entry in the log
    at: float
    kind: str
    text: str


def entries_of(
    store: Store, job: str, *, before: int | None = None, limit: int = 1000
) -> list[tuple[int, Entry]]:
    """The newest entries that speak of a job, oldest first."""
    query = (
        sa.select(log.c.number, log.c.entry)
        .join(mentions, mentions.c.number == log.c.number)
        .where(mentions.c.job == job)
        .order_by(log.c.number.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(log.c.number < before)
    return [(row.number, _entry(row.entry)) for row in reversed(store.rows(query))]


def decisions(store: Store, *, before: int | None = None, limit: int = 50) -> list[dict[str, Any]]:
    """Plans with their notes, the newest first."""
    query = sa.select(log.c.number, log.c.entry).where(log.c.kind == "Plan")
    if before is not None:
        query = query.where(log.c.number < before)
    rows = store.rows(query.order_by(log.c.number.desc()).limit(limit))
    return [_decision(row.number, _entry(row.entry)) for row in rows]


def _decision(number: int, plan: Entry) -> dict[str, Any]:
    assert isinstance(plan, Plan)
    return {
        "number": number,
        "plan": plan.number,
        "at": plan.at,
        "actions": [{"job": a.job, "text": tell_action(a)} for a in plan.actions],
        "notes": dict(plan.notes),
        "forecasts": {
            j: {"eta": f.eta, "low": f.low, "high": f.high} for j, f in plan.forecasts.items()
        },
    }


def story(store: Store, job: str, limit: int = 1000) -> list[Line]:
    """What happened to a job and why, line by line."""
    lines = []
    for number, entry in entries_of(store, job, limit=limit):
        for kind, text in tell(entry, job):
            lines.append(Line(number, entry.at, kind, text))
    return lines


def curves(store: Store, job: str, limit: int = 20_000) -> dict[str, list[list[float]]]:
    """(time, value) of loss, accuracy, batch, GPUs and samples per second."""
    found: dict[str, list[list[float]]] = {
        "loss": [],
        "accuracy": [],
        "batch": [],
        "gpus": [],
        "throughput": [],
    }
    for _, entry in entries_of(store, job, limit=limit):
        at = entry.at
        match entry:
            case ev.EpochFinished():
                if entry.loss is not None:
                    found["loss"].append([at, entry.loss])
                if entry.accuracy is not None:
                    found["accuracy"].append([at, entry.accuracy])
                if entry.step_seconds and entry.steps:
                    found["throughput"].append(
                        [at, entry.samples / entry.steps / entry.step_seconds]
                    )
            case ev.ThroughputMeasured():
                found["throughput"].append([at, entry.configuration.batch / entry.step_seconds])
            case Plan():
                for action in entry.actions:
                    if action.job == job and isinstance(action, Start | Rescale):
                        found["gpus"].append([at, action.allocation.n_gpus])
                        found["batch"].append([at, action.allocation.batch])
                    elif action.job == job and isinstance(action, Stop | Finish):
                        found["gpus"].append([at, 0])
            case ev.JobEnded():
                found["gpus"].append([at, 0])
            case _:
                pass
    return found


def _entry(text: str) -> Entry:
    entry = decode(text)
    assert not isinstance(entry, Header)
    return entry
