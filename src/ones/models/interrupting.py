"""What policies of rigid, interruptible jobs share: everything but the rank.

A job has the GPUs and the batch that its user asked for, or none. On every arrival and
end the best in rank run (`rigid.who_runs`); who is outranked goes back into the queue
through a checkpoint. A policy says what a rank is, and where a job may be put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, ClassVar

from ones.core.cluster import Gpu, NodeState
from ones.core.events import (
    CAPACITY_EVENTS,
    EpochFinished,
    Event,
    JobSubmitted,
    NodeDown,
    OwnerLimitSet,
    StepsDone,
    ThroughputMeasured,
)
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.packing import Room
from ones.models.rigid import Group, Line, Rank, Runner, Turn, allocation_of, size_of, who_runs
from ones.models.sharing import OwnerRoom

#: seconds until a better job tries again to interrupt one that is in transition
RETRY_SECONDS = 5.0


class Interrupting:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"
    follows_epochs: ClassVar[bool] = False  # does an epoch change the rank of its job?

    def __init__(self) -> None:
        self._line: Line | None = None  # an index of what the view shows: made anew when missing
        self._starting: dict[JobId, None] = {}  # to run, but on no GPU yet
        self.news: list[JobId] = []  # jobs of which the last event changed what is to be said

    # what a policy says

    def waiting_key(self, job: JobView) -> tuple[int, Rank]:
        """Cell and key of a job that waits: they must not change while nothing happens to it."""
        raise NotImplementedError

    def waiting_rank(self, group: Group, key: Rank, now: float) -> Rank:
        """What a key is worth beside the ranks of those who run."""
        return key

    def running_rank(self, job: JobView, now: float) -> Rank:
        raise NotImplementedError

    def ranks_drift(self) -> bool:
        """Do ranks of running jobs change while nothing happens to them?"""
        return False

    def place(self, view: View, room: Room, job: JobView, size: int) -> tuple[Gpu, ...] | None:
        """None: rather wait than be put where there is room."""
        return room.place(size)

    def start_note(self, job: JobView, nodes: int) -> str:
        raise NotImplementedError

    def wait_note(self, job: JobView) -> str:
        raise NotImplementedError

    def wake_at(self, view: View, starting: Iterable[JobView]) -> float:
        """`starting`: to run, but on no GPU yet."""
        return inf

    # the same for all

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, PlanAdopted):
            for action in event.plan.actions:
                self.look_at(view, action.job)
            return
        self.news = []
        if isinstance(event, OwnerLimitSet | NodeDown):
            self._line = None  # may concern anybody
            self.in_line(view)
        elif isinstance(event, EpochFinished):
            if self.follows_epochs:
                self.look_at(view, event.job)
        elif not isinstance(event, StepsDone | ThroughputMeasured):
            job: JobId | None = getattr(event, "job", None)
            if isinstance(event, JobSubmitted):
                self.look_at(view, event.job.id)
                self.news.append(event.job.id)
            elif job is not None:
                self.look_at(view, job)

    def decide(self, view: View) -> Decision:
        line = self.in_line(view)
        if not len(line):
            return Decision(schedule=view.schedule)
        if self.ranks_drift():
            for runner in tuple(line.runners):
                line.run(self._runner(view, view.job(runner.job)))

        def taking(movable: list[Runner]) -> Callable[[tuple[str, ...], int], bool]:
            limited = [view.job(r.job) for r in movable if r.owner and not r.pinned]
            owners = OwnerRoom(view, limited)
            return lambda owner, gpus: not owner or owners.take(owner[0], gpus)

        most: dict[int, int] = {}
        while True:
            turn = who_runs(
                line,
                len(view.free),
                rank=lambda group, key: self.waiting_rank(group, key, view.now),
                taking=taking,
                most=most,
            )
            places, unplaced = self._placed(view, turn)
            if unplaced is None:
                break
            # there is room, but not together: for narrower ones, then
            size = size_of(unplaced)
            most[size] = sum(size_of(view.job(job)) == size for job in places)
        again = view.now + RETRY_SECONDS if turn.ask_again else inf
        starting = [view.job(job) for job in (*self._starting, *places)]
        wake_at = min(again, self.wake_at(view, starting))
        return self._carried_out(view, turn, places, wake_at)

    def _placed(
        self, view: View, turn: Turn
    ) -> tuple[dict[JobId, tuple[Gpu, ...]], JobView | None]:
        """Where those go who are started, up to the first who rather waits."""
        room = Room(view)
        for evicted in turn.evicted:
            room.release(view.schedule[evicted].gpus)
        places: dict[JobId, tuple[Gpu, ...]] = {}
        for admitted in turn.admitted:
            job = view.job(admitted)
            gpus = self.place(view, room, job, size_of(job))
            if gpus is None:
                return places, job
            places[admitted] = gpus
        return places, None

    def _carried_out(
        self, view: View, turn: Turn, places: Mapping[JobId, tuple[Gpu, ...]], wake_at: float
    ) -> Decision:
        edit = view.schedule.edit()
        notes: dict[JobId, str] = {}
        for job_id, gpus in places.items():
            job = view.job(job_id)
            allocation = allocation_of(job, gpus)
            edit.put(job_id, allocation)
            notes[job_id] = self.start_note(job, allocation.n_nodes)
        for evicted in turn.evicted:
            edit.drop(evicted)
            notes[evicted] = f"interrupted for others: {self.wait_note(view.job(evicted))}"
        for job_id in self.news:
            if job_id in view.jobs and edit.get(job_id) is None:
                notes[job_id] = self.wait_note(view.job(job_id))
        return Decision(schedule=edit.done(), wake_at=wake_at, notes=notes)

    def _runner(self, view: View, job: JobView) -> Runner:
        assert job.wanted is not None
        return Runner(
            self.running_rank(job, view.now),
            job.id,
            _limited(view, job),
            job.wanted.n_gpus,
            len(_usable(view, job)),
            job.pinned,
        )

    def in_line(self, view: View) -> Line:
        return self._made_anew(view) if self._line is None else self._line

    def _made_anew(self, view: View) -> Line:
        self._line, self._starting = Line(), {}
        for job in view.jobs:
            self.look_at(view, job)
        return self._line

    def look_at(self, view: View, job_id: JobId) -> None:
        """Follow a job into the queue, out of it, and away."""
        line = self.in_line(view)
        self._starting.pop(job_id, None)
        if job_id not in view.jobs:
            line.forget(job_id)
            return
        job = view.job(job_id)
        if job.wanted is not None:
            line.run(self._runner(view, job))
            if not job.occupied:
                self._starting[job_id] = None
        elif job.pinned:
            line.forget(job_id)  # on its way out
        else:
            cell, key = self.waiting_key(job)
            line.wait(job_id, Group(_limited(view, job), size_of(job), cell), key)

    def save(self) -> dict[str, Any]:
        return {"news": list(self.news)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.news = [JobId(job) for job in saved["news"]]
        self._line = None


def _limited(view: View, job: JobView) -> tuple[str, ...]:
    return () if view.room(job.job.owner) is None else (job.job.owner,)


def _usable(view: View, job: JobView) -> list[Gpu]:
    """Its GPUs that others could have."""
    assert job.wanted is not None
    return [gpu for gpu in job.wanted.gpus if view.cluster.state_of(gpu) is NodeState.UP]
