"""Queues of attained service: a job moves to the next queue when it has used enough GPU-seconds.

A job that has waited long enough can return to the first queue. Timers hold the time of the next
move of each job, so that an event costs only the jobs that move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any

from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.rigid_jobs import size_of

#: a demotion noticed later than this does not change the order
ON_TIME_SECONDS = 1.0


@dataclass(slots=True)
class QueueEntry:
    """Position of a job in the queues. Field names are those of snapshots."""

    queue: int = 0
    seat: int = 0  # position within its queue; smaller goes first
    sunk: bool = False  # demoted by the last event: behind the waiting jobs of its new queue
    forgotten: float = 0.0  # GPU-seconds before its last promotion; not counted
    forgotten_run: float = 0.0
    waits_since: float = inf
    due: float = inf  # time of its next demotion or promotion


class FeedbackQueues:
    """`limits`: GPU-seconds at which a job leaves a queue. `promote_knob`: waiting time, as a
    multiple of the time run, after which a job returns to the first queue; 0: never."""

    def __init__(self, limits: tuple[float, ...], promote_knob: float) -> None:
        self._limits, self._knob = limits, promote_knob
        self._entries: dict[JobId, QueueEntry] = {}
        self._front, self._tail = 0, 0  # positions before and behind all others
        self._demoted: list[JobId] = []  # by the last event
        self._timers: list[tuple[float, JobId]] = []

    def __getitem__(self, job: JobId) -> QueueEntry:
        return self._entries[job]

    def add(self, job: JobId) -> None:
        self._entries[job] = QueueEntry(seat=self._next_position())

    def remove(self, job: JobId) -> None:
        self._entries.pop(job, None)

    def reorder(self, started: Iterable[JobId], stopped: Iterable[JobId]) -> None:
        """Puts started jobs behind the running ones, stopped jobs before the waiting ones."""
        for job in started:
            if job in self._entries:
                self._entries[job].seat = self._next_position()
        entries = [self._entries[job] for job in stopped if job in self._entries]
        for entry in sorted(entries, key=lambda e: e.seat, reverse=True):
            self._front -= 1
            entry.seat = self._front

    def _next_position(self) -> int:
        self._tail += 1
        return self._tail

    def update(self, job: JobView, now: float) -> None:
        """Sets waiting time and timer of a job that has changed."""
        entry = self._entries.setdefault(job.id, QueueEntry())
        waits = job.wanted is None and not job.pinned
        entry.waits_since = min(entry.waits_since, now) if waits else inf
        due = self._due(job, entry)
        if due != entry.due:
            entry.due = due
            if due < inf:
                heappush(self._timers, (due, job.id))

    def _due(self, job: JobView, entry: QueueEntry) -> float:
        """Time of its next demotion (if it runs) or promotion (if it waits)."""
        if job.occupied and entry.queue < len(self._limits):
            left = self._limits[entry.queue] - (job.gpu_seconds - entry.forgotten)
            return job.booked_at + left / job.occupied
        ran = job.run_seconds - entry.forgotten_run
        if self._knob and entry.queue and entry.waits_since < inf and ran > 0:
            return entry.waits_since + self._knob * ran
        return inf

    def settle_demoted(self) -> Iterator[JobId]:
        """Ranks jobs demoted by an earlier event as running jobs; yields them."""
        demoted, self._demoted = self._demoted, []
        for job in demoted:
            if job in self._entries:
                self._entries[job].sunk = False
                yield job

    def move_due(self, view: View) -> Iterator[tuple[JobId, bool]]:
        """Moves every job with an expired timer; yields it, and whether it was promoted.

        The caller must `update` each job before it takes the next.
        """
        while self._timers and self._timers[0][0] <= view.now:
            due, job_id = heappop(self._timers)
            entry = self._entries.get(job_id)
            if entry is None or entry.due != due or job_id not in view.jobs:
                continue  # an event has changed it since
            job = view.job(job_id)
            entry.due = inf
            if job.occupied:
                entry.queue += 1
                entry.seat = self._next_position()
                # if it is noticed late, no job was waiting: it keeps its position
                if view.now - due <= ON_TIME_SECONDS:
                    entry.sunk = True
                    self._demoted.append(job_id)
                yield job_id, False
            else:
                entry.queue, entry.seat = 0, self._next_position()
                entry.forgotten = job.gpu_seconds_at(view.now)
                entry.forgotten_run = job.run_seconds_at(view.now)
                entry.waits_since = view.now
                yield job_id, True

    def next_move(self, now: float, starting: Iterable[JobView]) -> float:
        """Time of the next move of any job. `starting`: jobs without a GPU, and without a timer."""
        while self._timers and self._timers[0] != self._timer_of(self._timers[0][1]):
            heappop(self._timers)  # void
        due = self._timers[0][0] if self._timers else inf
        for job in starting:  # its earliest demotion
            entry = self._entries[job.id]
            if entry.queue < len(self._limits):
                left = self._limits[entry.queue] - (job.gpu_seconds - entry.forgotten)
                due = min(due, now + left / size_of(job))
        return due

    def _timer_of(self, job: JobId) -> tuple[float, JobId]:
        return (self._entries[job].due if job in self._entries else inf, job)

    def save(self) -> dict[str, Any]:
        """JSON has no infinity: it is saved as null."""
        return {
            "seats": {
                job: {k: v if v != inf else None for k, v in asdict(entry).items()}
                for job, entry in self._entries.items()
            },
            "front": self._front,
            "tail": self._tail,
            "sunk": list(self._demoted),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        def finite(entry: Mapping[str, Any]) -> dict[str, Any]:
            return {name: inf if value is None else value for name, value in entry.items()}

        self._entries = {
            JobId(job): QueueEntry(**finite(entry)) for job, entry in saved["seats"].items()
        }
        self._front, self._tail = int(saved["front"]), int(saved["tail"])
        self._demoted = [JobId(job) for job in saved["sunk"]]
        self._timers = sorted((e.due, job) for job, e in self._entries.items() if e.due < inf)
