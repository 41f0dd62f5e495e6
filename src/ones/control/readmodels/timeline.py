"""The jobs of each GPU over time, with their share of the batch: segments, from the run log.

A segment begins with the plan that allocates the GPU to a job and ends when the worker has left or
is lost. Each call reads only the new entries of the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from ones.control.schema import log, mentions
from ones.control.store import Store
from ones.core import events as ev
from ones.core.plan import Plan, Rescale, Start
from ones.runlog import decode

_KINDS = ("Plan", "JobDescribed", "WorkerLeft", "WorkerLost", "NodeDown")
#: number of newest entries that the first call reads; more if a live job is older
FIRST_LOOK = 50_000
KEPT = 50_000  # maximum number of ended segments in memory
_AT_ONCE = 500  # names in one query


@dataclass(frozen=True, slots=True)
class Segment:
    gpu: str
    job: str
    batch: int  # samples of this GPU per optimizer step; 0: the script's own batch
    begin: float
    end: float | None = None  # None: not ended yet


class Timeline:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._seen: int | None = None  # number of the last entry that was read
        self._open: dict[str, tuple[Segment, int]] = {}  # by GPU, with the plan that allocated it
        self._closed: deque[Segment] = deque(maxlen=KEPT)  # in order of their end

    def since(self, at: float, live: Sequence[str] = (), limit: int = KEPT) -> list[Segment]:
        """The newest segments that end after `at`, in order of their begin.

        `live`: jobs that have not ended.
        """
        with self._lock:
            self._catch_up(live)
            found = [segment for segment, _ in self._open.values()]
            for segment in reversed(self._closed):
                if segment.end is not None and segment.end <= at:
                    break
                if len(found) >= limit:
                    break
                found.append(segment)
        return sorted(found, key=lambda segment: (segment.begin, segment.gpu))

    def _catch_up(self, live: Sequence[str]) -> None:
        if self._seen is None:
            self._seen = self._first(live)
        query = (
            sa.select(log.c.number, log.c.entry)
            .where(log.c.kind.in_(_KINDS), log.c.number > self._seen)
            .order_by(log.c.number)
        )
        for row in self._store.rows(query):
            self._apply(decode(row.entry))
            self._seen = row.number

    def _first(self, live: Sequence[str]) -> int:
        first = max(0, self._store.last_number() - FIRST_LOOK)
        for begin in range(0, len(live), _AT_ONCE):
            some = live[begin : begin + _AT_ONCE]
            query = sa.select(sa.func.min(mentions.c.number)).where(mentions.c.job.in_(some))
            oldest = self._store.rows(query)[0][0]
            if oldest is not None:
                first = min(first, oldest - 1)
        return first

    def _apply(self, entry: object) -> None:
        match entry:
            case Plan():
                for action in entry.actions:
                    if isinstance(action, Start | Rescale):
                        for worker in action.allocation.workers:
                            gpu = str(worker.gpu)
                            self._allocate(gpu, action.job, worker.batch, entry.at, entry.number)
            case ev.WorkerLeft() | ev.WorkerLost():
                held = self._open.get(str(entry.gpu))
                if held is None:
                    return
                segment, plan = held
                if segment.job == entry.job and entry.generation.plan >= plan:
                    self._close(segment.gpu, entry.at)
            case ev.JobDescribed():
                self._fill_in_batch(entry.job, entry.base_batch)
            case ev.NodeDown():
                for gpu in [g for g in self._open if g.rpartition("/")[0] == entry.node]:
                    self._close(gpu, entry.at)

    def _allocate(self, gpu: str, job: str, batch: int, at: float, plan: int) -> None:
        held = self._open.get(gpu)
        if held is not None:
            segment, first_plan = held
            if segment.job == job:
                plan = first_plan  # the worker stays, with the plan that launched it
                if segment.batch == batch:
                    return
            self._close(gpu, at)
        self._open[gpu] = Segment(gpu, job, batch, at), plan

    def _fill_in_batch(self, job: str, batch: int) -> None:
        """Set the batch of segments without one: the script's own, in even shares."""
        mine = [
            gpu
            for gpu, (segment, _) in self._open.items()
            if segment.job == job and not segment.batch
        ]
        if not mine:
            return
        share, rest = divmod(max(batch, len(mine)), len(mine))
        for i, gpu in enumerate(sorted(mine, key=_place)):
            segment, plan = self._open[gpu]
            self._open[gpu] = replace(segment, batch=share + (i < rest)), plan

    def _close(self, gpu: str, at: float) -> None:
        segment, _ = self._open.pop(gpu)
        if at > segment.begin:
            self._closed.append(replace(segment, end=at))


def _place(gpu: str) -> tuple[str, int]:
    node, _, index = gpu.rpartition("/")
    return node, int(index)
