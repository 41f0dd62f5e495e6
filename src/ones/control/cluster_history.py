"""Use of the cluster over time: GPUs used, waiting jobs, decisions.

Counted from the cards of jobs, as means of intervals in three resolutions. Each resolution keeps a
fixed number of intervals, so memory and database stay small. Some intervals share a row of the
database; changed rows are written once a minute and at the end. The time in which no controller ran
is left out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields

import sqlalchemy as sa

from ones.control import logs
from ones.control.readmodels.job_cards import WAITING_STATES, JobCard
from ones.control.schema import meta
from ones.control.store import Operation, Store, delete, upsert
from ones.wire.decoding import CodecError, Decoder

_KEY = "history:"  # in `meta`, then the step and the number of the row
FLUSH_SECONDS = 60.0
HOUR = 3600.0
#: a rate of an interval that was observed for less time refers to this time
LEAST_SECONDS = 60.0

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class Resolution:
    step: int  # seconds of an interval
    kept: int  # number of intervals
    in_row: int  # number of intervals in a row of the database


#: 25 hours in minutes, eight days in quarters of an hour, 100 days in steps of two hours
RESOLUTIONS = (Resolution(60, 1500, 60), Resolution(900, 768, 96), Resolution(7200, 1200, 84))


@dataclass(slots=True)
class Sums:
    """What was counted in an interval: values multiplied by seconds."""

    seconds: float = 0.0  # observed
    gpu_seconds: float = 0.0  # of GPUs with a worker
    capacity_seconds: float = 0.0  # of all GPUs
    waiting_seconds: float = 0.0
    running_seconds: float = 0.0
    most_waiting: float = 0.0
    decisions: float = 0.0

    def add(self, other: Sums) -> None:
        for each in fields(Sums):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            highest = each.name == "most_waiting"
            setattr(self, each.name, max(mine, more) if highest else mine + more)

    def stored(self) -> list[float]:
        return [round(getattr(self, each.name), 3) for each in fields(Sums)]


_ROW: Decoder[dict[int, tuple[float, float, float, float, float, float, float]]] = Decoder(
    dict[int, tuple[float, float, float, float, float, float, float]], logs=True
)


@dataclass(frozen=True, slots=True)
class Point:
    """Means of an interval."""

    at: float  # its begin
    gpus: float
    gpus_used: float
    waiting: float
    most_waiting: int
    running: float
    decisions_per_hour: float

    @classmethod
    def of(cls, at: float, sums: Sums) -> Point:
        seconds = sums.seconds
        return cls(
            at=at,
            gpus=sums.capacity_seconds / seconds,
            gpus_used=sums.gpu_seconds / seconds,
            waiting=sums.waiting_seconds / seconds,
            most_waiting=int(sums.most_waiting),
            running=sums.running_seconds / seconds,
            decisions_per_hour=sums.decisions / max(seconds, LEAST_SECONDS) * HOUR,
        )

    @property
    def utilisation(self) -> float | None:
        """Share of the GPUs that had a worker; None: there was no GPU."""
        return min(1.0, self.gpus_used / self.gpus) if self.gpus else None


class _Series:
    """The intervals of one resolution, by their number since 1970."""

    def __init__(self, resolution: Resolution) -> None:
        self.resolution = resolution
        self.intervals: dict[int, Sums] = {}
        self.dirty: set[int] = set()  # rows
        self.gone: set[int] = set()  # rows without an interval

    def at(self, moment: float) -> Sums:
        number = int(moment // self.resolution.step)
        found = self.intervals.get(number)
        if found is None:
            found = self.intervals[number] = Sums()
            # a whole row at a time
            if len(self.intervals) > self.resolution.kept + self.resolution.in_row:
                self._drop_before(number - self.resolution.kept)
        self.dirty.add(number // self.resolution.in_row)
        return found

    def _drop_before(self, number: int) -> None:
        for old in [each for each in self.intervals if each <= number]:
            del self.intervals[old]
            row = old // self.resolution.in_row
            if (row + 1) * self.resolution.in_row <= number + 1:
                self.gone.add(row)

    def add(self, begin: float, end: float, rates: Sums) -> None:
        """Count values that hold from `begin` to `end`; `rates`: in each second."""
        step = self.resolution.step
        begin = max(begin, end - step * self.resolution.kept)
        while begin < end:
            upto = min(end, (begin // step + 1) * step)
            sums, seconds = self.at(begin), upto - begin
            sums.seconds += seconds
            sums.gpu_seconds += rates.gpu_seconds * seconds
            sums.capacity_seconds += rates.capacity_seconds * seconds
            sums.waiting_seconds += rates.waiting_seconds * seconds
            sums.running_seconds += rates.running_seconds * seconds
            sums.most_waiting = max(sums.most_waiting, rates.most_waiting)
            begin = upto

    def covers(self, since: float, now: float) -> bool:
        return since >= now - self.resolution.step * (self.resolution.kept - 1)

    def rows(self) -> Iterator[Operation]:
        """Writes of the changed rows."""
        step, size = self.resolution.step, self.resolution.in_row
        for row in sorted(self.dirty - self.gone):
            numbers = range(row * size, (row + 1) * size)
            kept = {n: self.intervals[n].stored() for n in numbers if n in self.intervals}
            yield upsert(meta, {"key": f"{_KEY}{step}:{row}", "value": json.dumps(kept)})
        for row in sorted(self.gone):
            yield delete(meta, {"key": f"{_KEY}{step}:{row}"})
        self.dirty.clear()
        self.gone.clear()


def _counted(card: JobCard) -> tuple[int, bool] | None:
    """GPUs of a job, and whether it waits; None: it has ended."""
    return None if card.over else (len(card.workers), card.state in WAITING_STATES)


class ClusterHistory:
    """`n_gpus`: present number of GPUs; `decisions`: number of decisions so far."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], float],
        n_gpus: Callable[[], int],
        decisions: Callable[[], int],
    ) -> None:
        self._store, self._now = store, now
        self._n_gpus, self._decisions = n_gpus, decisions
        self._lock = threading.Lock()
        self._jobs: dict[str, tuple[int, bool]] = {}  # see `_counted`
        self._used = self._waiting = self._running = 0
        self._since, self._decided = now(), decisions()
        self._series = {each.step: _Series(each) for each in RESOLUTIONS}
        self._load()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ones-history", daemon=True)

    def _load(self) -> None:
        query = sa.select(meta.c.key, meta.c.value).where(meta.c.key.startswith(_KEY))
        for row in self._store.rows(query):
            step = row.key.split(":")[1]
            series = self._series.get(int(step)) if step.isdecimal() else None
            if series is None:
                continue
            try:
                stored = _ROW.decode(row.value)
            except CodecError as problem:
                log.warning("history row skipped", row=row.key, problem=str(problem))
                continue
            series.intervals.update({number: Sums(*values) for number, values in stored.items()})
        for series in self._series.values():
            series.intervals = dict(sorted(series.intervals.items()))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()

    def _run(self) -> None:
        while not self._over.wait(FLUSH_SECONDS):
            self.flush()

    # counting, in the scheduler's thread

    def fill(self, cards: Iterable[JobCard]) -> None:
        """After a restart."""
        with self._lock:
            for card in cards:
                self._count(card)

    def take(self, card: JobCard) -> None:
        """A job has a new card. Most cards only bring progress, which costs nothing here."""
        if self._jobs.get(card.id) != _counted(card):
            with self._lock:
                self._advance()
                self._count(card)

    def _count(self, card: JobCard) -> None:
        before, after = self._jobs.pop(card.id, None), _counted(card)
        for counted, sign in ((before, -1), (after, 1)):
            if counted is not None:
                gpus, waits = counted
                self._used += sign * gpus
                self._running += sign * (gpus > 0)
                self._waiting += sign * waits
        if after is not None:
            self._jobs[card.id] = after

    def _advance(self) -> None:
        """Count the time since the last call."""
        now, decided = self._now(), self._decisions()
        rates = Sums(1.0, self._used, self._n_gpus(), self._waiting, self._running, self._waiting)
        for series in self._series.values():
            series.add(self._since, now, rates)
            if decided > self._decided:
                series.at(now).decisions += decided - self._decided
        self._since, self._decided = max(now, self._since), decided

    def flush(self) -> None:
        """Queue the changed rows for the database."""
        with self._lock:
            self._advance()
            operations = [op for series in self._series.values() for op in series.rows()]
        if operations:
            self._store.write(operations=operations)

    # reading, in any thread

    def points(self, since: float, most: int) -> tuple[int, list[Point]]:
        """Seconds of an interval, and at most `most` intervals from `since` on, oldest first.

        An interval that was not observed is left out. `most`: at least 2.
        """
        with self._lock:
            self._advance()
            now = self._since
            series = next(
                (each for each in self._series.values() if each.covers(since, now)),
                self._series[RESOLUTIONS[-1].step],
            )
            step = series.resolution.step
            last = int(now // step)
            first = max(int(since // step), last - series.resolution.kept + 1)
            n_intervals = last - first + 1
            # groups begin at multiples of their length: the same ones in every call
            together = 1 if n_intervals <= most else -(-n_intervals // (most - 1))
            merged: dict[int, Sums] = {}
            for number, sums in series.intervals.items():
                if number >= first and sums.seconds > 0:
                    merged.setdefault(number // together, Sums()).add(sums)
        return step * together, [
            Point.of(group * together * step, sums) for group, sums in merged.items()
        ]
