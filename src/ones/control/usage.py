"""GPU time by user, tag and day, and budgets.

Counted from the cards of jobs, in the scheduler's thread; one row for each day is kept in the
database, together with what is counted of each unfinished job, so that a restart counts nothing
twice. Days and months are UTC.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from ones.control.readmodels.job_cards import JobCard
from ones.control.schema import meta
from ones.control.store import Operation, Store, upsert
from ones.core.fair_share import decayed
from ones.errors import InvalidSettingError, UserError
from ones.wire.bounds import MOST_MEASURE, Value
from ones.wire.decoding import Decoder

_DAYS, _COUNTED, _BUDGETS = "usage:", "usage_counted", "budgets"  # in `meta`
FLUSH_SECONDS = 60.0
ALL = ""  # instead of a tag: all jobs of the user
HOUR = 3600.0


class _Counted(Value, frozen=True):
    """What is counted of an unfinished job."""

    gpu_seconds: float = 0.0
    until: float = 0.0  # time up to which it is counted


_DAY: Decoder[dict[str, dict[str, float]]] = Decoder(dict[str, dict[str, float]], logs=True)
_JOBS: Decoder[dict[str, _Counted]] = Decoder(dict[str, _Counted], logs=True)
_LIMITS: Decoder[dict[str, float]] = Decoder(dict[str, float], logs=True)


@dataclass(frozen=True, slots=True)
class UsageRow:
    day: str  # as 2026-01-31
    user: str
    tag: str  # ALL: of all jobs
    gpu_hours: float


class Usage:
    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        #: day -> user -> tag -> GPU-seconds
        self._days: dict[str, dict[str, dict[str, float]]] = {}
        self._counted: dict[str, _Counted] = {}
        self._dirty: set[str] = set()
        self._flushed_at = now()
        rows = {
            row.key: row.value
            for row in store.rows(
                sa.select(meta.c.key, meta.c.value).where(meta.c.key.startswith(_DAYS))
            )
        }
        self._is_new = not rows
        for key, text in rows.items():
            self._days[key.removeprefix(_DAYS)] = _DAY.decode(text)
        self._counted = _JOBS.decode(text) if (text := _text(store, _COUNTED)) else {}
        self._budgets = _LIMITS.decode(text) if (text := _text(store, _BUDGETS)) else {}

    # counting, in the scheduler's thread

    def fill(self, cards: Iterable[JobCard]) -> None:
        """After a restart. Jobs of earlier versions are counted from their cards."""
        for card in cards:
            if not card.over or self._is_new or card.id in self._counted:
                self.take(card)

    def take(self, card: JobCard) -> None:
        """A job has a new card."""
        before = self._counted.get(card.id) or _Counted(0.0, card.started_at or card.booked_at)
        more = card.gpu_seconds - before.gpu_seconds
        with self._lock:
            if more > 0:
                self._add(card, more, before.until, card.booked_at)
            if card.over:
                self._counted.pop(card.id, None)
            elif more > 0 or card.workers:
                self._counted[card.id] = _Counted(card.gpu_seconds, card.booked_at)
        if self._now() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def _add(self, card: JobCard, seconds: float, begin: float, end: float) -> None:
        for day, share in _shares(begin, end):
            of_user = self._days.setdefault(day, {}).setdefault(card.owner, {})
            for tag in (ALL, *dict.fromkeys(card.tags)):
                of_user[tag] = of_user.get(tag, 0.0) + seconds * share
            self._dirty.add(day)

    def flush(self) -> None:
        """Queue the changed days for the database."""
        self._flushed_at = self._now()
        with self._lock:
            operations: list[Operation] = [
                upsert(meta, {"key": _DAYS + day, "value": json.dumps(self._days[day])})
                for day in sorted(self._dirty)
            ]
            if operations:
                counted = {job: {"gpu_seconds": c.gpu_seconds, "until": c.until}
                           for job, c in self._counted.items()}  # fmt: skip
                operations.append(upsert(meta, {"key": _COUNTED, "value": json.dumps(counted)}))
            self._dirty.clear()
        if operations:
            self._store.write(operations=operations)

    # reading, in any thread

    def rows(
        self, live: Iterable[JobCard], *, since: float, until: float, user: str | None = None
    ) -> list[UsageRow]:
        """GPU-hours by day, user and tag, between two times (whole days). `live`: unfinished jobs,
        of which the time since their last card is added."""
        first, last = day_of(since), day_of(until)
        found: dict[tuple[str, str, str], float] = defaultdict(float)
        with self._lock:
            for day, users in self._days.items():
                if first <= day <= last:
                    for name, tags in users.items():
                        for tag, seconds in tags.items():
                            found[day, name, tag] += seconds
        now = self._now()
        for card in live:
            seconds = max(0.0, now - card.booked_at) * len(card.workers)
            for day, share in _shares(card.booked_at, now) if seconds else ():
                if first <= day <= last:
                    for tag in (ALL, *dict.fromkeys(card.tags)):
                        found[day, card.owner, tag] += seconds * share
        return [
            UsageRow(day, name, tag, seconds / HOUR)
            for (day, name, tag), seconds in sorted(found.items())
            if user in (None, name)
        ]

    def used_this_month(self, user: str, live: Iterable[JobCard]) -> float:
        """GPU-hours of the user since the first day of the month."""
        now = self._now()
        begin = datetime.fromtimestamp(now, UTC).replace(day=1).timestamp()
        rows = self.rows(live, since=begin, until=now, user=user)
        return sum(row.gpu_hours for row in rows if row.tag == ALL)

    def decayed(self, live: Iterable[JobCard], half_life: float) -> dict[str, float]:
        """GPU-seconds of each user that fair share counts; use of a day counts from its noon.

        `half_life`: in seconds; 0: nothing counts.
        """
        now = self._now()
        found: dict[str, float] = defaultdict(float)
        for row in self.rows(live, since=0.0, until=now) if half_life else ():
            if row.tag == ALL:
                noon = datetime.fromisoformat(f"{row.day}T12:00:00+00:00").timestamp()
                found[row.user] += decayed(row.gpu_hours * HOUR, now - noon, half_life)
        return {user: min(seconds, MOST_MEASURE) for user, seconds in found.items() if seconds > 0}

    # budgets

    def budget(self, user: str) -> float | None:
        """GPU-hours that the user may use in a month; None: no budget."""
        return self._budgets.get(user)

    def set_budget(self, user: str, gpu_hours: float | None) -> None:
        if gpu_hours is not None and gpu_hours < 0:
            raise InvalidSettingError(f"gpu_hours: {gpu_hours} is negative")
        with self._lock:
            changed = {name: hours for name, hours in self._budgets.items() if name != user}
            if gpu_hours is not None:
                changed[user] = gpu_hours
            self._store.write_now(upsert(meta, {"key": _BUDGETS, "value": json.dumps(changed)}))
            self._budgets = changed

    def check_budget(self, user: str, live: Callable[[], Iterable[JobCard]]) -> None:
        """Raise if the user has no GPU-hours left in this month."""
        budget = self.budget(user)
        if budget is None:
            return
        used = self.used_this_month(user, live())
        if used >= budget:
            now = datetime.fromtimestamp(self._now(), UTC)
            following = (now.replace(day=1) + timedelta(days=32)).replace(day=1)
            raise UserError(
                f"{user} has used {used:.1f} of {budget:g} GPU hours of this month; jobs can be"
                f" submitted again from {following:%Y-%m-%d}, or ask an admin for a larger budget"
            )


def day_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _shares(begin: float, end: float) -> Iterator[tuple[str, float]]:
    """The days of an interval, each with its share of it."""
    if not end > begin:
        yield day_of(end), 1.0
        return
    at = begin
    while at < end:
        midnight = datetime.fromtimestamp(at, UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        following = (midnight + timedelta(days=1)).timestamp()
        upto = min(end, max(following, at + 1.0))
        yield day_of(at), (upto - at) / (end - begin)
        at = upto


def _text(store: Store, key: str) -> str:
    rows = store.rows(sa.select(meta.c.value).where(meta.c.key == key))
    return str(rows[0].value) if rows else ""
