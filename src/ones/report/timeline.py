"""Who was on which GPU when, with which batch: a run log as something to draw or to measure.

The log is folded into a `State`, and after each entry only the jobs it names are looked
at, so a long log costs its entries and never its jobs. A GPU is taken from the order that
sends a worker there until the worker is known to be gone. Nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ones.core import events as ev
from ones.core.actions import adopt
from ones.core.cluster import Cluster, Gpu, NodeId, NodeState
from ones.core.job import EndReason, JobId
from ones.core.plan import Plan, Rescale, Start
from ones.core.schedule import Allocation, Worker
from ones.core.state import State
from ones.core.transitions import apply
from ones.runlog import Entry

WorkerPhase = Literal["starting", "training"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One worker on one GPU, for as long as nothing about it changes."""

    gpu: Gpu
    job: JobId
    start: float
    end: float
    batch: int  # local, per optimizer step; 0: the script's own, not known yet
    micro_steps: int
    phase: WorkerPhase


class JobPoint(NamedTuple):
    """From this time on: so many GPUs taken, such a global batch (0: it does not train)."""

    at: float
    gpus: int
    batch: int


class JobEnd(NamedTuple):
    at: float
    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A whole run. Step functions hold from each of their times until the next."""

    begin: float  # the first entry
    end: float  # the last one
    segments: tuple[Segment, ...]  # by start, then in the order of `gpus`
    gpus: tuple[Gpu, ...]  # in the cluster's order, those of nodes that were ever there
    down: Mapping[NodeId, tuple[tuple[float, float], ...]]  # also: not there yet
    submissions: Mapping[JobId, float]  # in order of submission
    ends: Mapping[JobId, JobEnd]
    queue_times: list[float]
    queue_lengths: list[int]
    job_history: Mapping[JobId, list[JobPoint]]


def timeline_of(cluster: Cluster, entries: Iterable[Entry]) -> Timeline:
    """The timeline of a log, given the cluster of its header. Workers that are there at the end
    of the log have their segments end with it."""
    watcher = _Watcher(cluster)
    for entry in entries:
        watcher.see(entry)
    return watcher.timeline()


class _Present(NamedTuple):
    """A segment that has not ended yet."""

    job: JobId
    start: float
    batch: int
    micro_steps: int
    phase: WorkerPhase


class _Watcher:
    """Looks over the shoulder of a `State` while it takes in a log."""

    def __init__(self, cluster: Cluster) -> None:
        self._state = State(cluster)
        self._begin: float | None = None
        self._segments: list[Segment] = []
        self._present: dict[Gpu, _Present] = {}
        self._workers: dict[JobId, int] = {}  # how many are present
        self._nodes = {node.id: node.gpus for node in cluster.nodes.values()}
        self._down: dict[NodeId, list[tuple[float, float]]] = {}
        self._down_since = {
            node.id: 0.0 for node in cluster.nodes.values() if node.state is NodeState.DOWN
        }
        self._submissions: dict[JobId, float] = {}
        self._ends: dict[JobId, JobEnd] = {}
        self._queue_times: list[float] = []
        self._queue_lengths: list[int] = []
        self._history: dict[JobId, list[JobPoint]] = {}

    def see(self, entry: Entry) -> None:
        if self._begin is None:
            self._begin = entry.at
        if isinstance(entry, Plan):
            self._adopt(entry)
        else:
            self._apply(entry)
        self._see_queue()

    def timeline(self) -> Timeline:
        now = self._state.now
        for gpu in list(self._present):
            self._leave(gpu)
        for node, since in self._down_since.items():
            self._was_down(node, since, now)
        gpus = tuple(Gpu(node, i) for node, count in self._nodes.items() for i in range(count))
        row = {gpu: i for i, gpu in enumerate(gpus)}
        return Timeline(
            begin=now if self._begin is None else self._begin,
            end=now,
            segments=tuple(sorted(self._segments, key=lambda s: (s.start, row[s.gpu]))),
            gpus=gpus,
            down={node: tuple(spells) for node, spells in self._down.items()},
            submissions=self._submissions,
            ends=self._ends,
            queue_times=self._queue_times,
            queue_lengths=self._queue_lengths,
            job_history=self._history,
        )

    # entries

    def _adopt(self, plan: Plan) -> None:
        adopt(self._state, plan)
        for action in plan.actions:
            if isinstance(action, Start | Rescale):
                held = self._held(action.job)
                stays = frozenset(held.gpus) if held else frozenset()
                for worker in action.allocation.workers:
                    if worker.gpu not in stays:
                        self._show(action.job, worker, "starting")
                self._see_job(action.job)

    def _apply(self, event: ev.Event) -> None:
        before = self._held(event.job) if isinstance(event, ev.WorkerReady | ev.Rescaled) else None
        if not apply(self._state, event):
            return
        match event:
            case ev.JobSubmitted():
                self._submissions[event.job.id] = event.job.submitted_at
            case ev.WorkerReady() | ev.Rescaled():
                self._come_true(event.job, before)
            case ev.JobDescribed():
                self._spell_out(event.job)
            case ev.RescaleFailed():
                self._see_job(event.job)
            case ev.WorkerLeft() | ev.WorkerLost():
                self._leave(event.gpu)
                self._see_job(event.job)
            case ev.JobEnded():
                self._ends[event.job] = JobEnd(event.at, self._state.ended[event.job].reason)
                self._see_job(event.job)
            case ev.NodeUp():
                self._node_up(event)
            case ev.NodeDown():
                self._node_down(event)
            case _:  # moves no worker
                pass

    def _come_true(self, job: JobId, before: Allocation | None) -> None:
        """All of a start have joined, or all of a re-scaling train: `held` is another one now."""
        held = self._held(job)
        if held is None or held is before:
            return
        for worker in held.workers:
            if worker.gpu in self._present:
                self._show(job, worker, "training")
        self._see_job(job)

    def _spell_out(self, job: JobId) -> None:
        """The script has said which batch is its own: workers were shown without one."""
        record = self._state.records[job]
        ordered = record.in_flight.allocation if record.in_flight else None
        for allocation in (ordered, record.held):
            for worker in allocation.workers if allocation else ():
                present = self._present.get(worker.gpu)
                if present is not None and present.job == job and not present.batch:
                    self._show(job, worker, present.phase)
        self._see_job(job)

    def _node_up(self, event: ev.NodeUp) -> None:
        since = self._down_since.pop(event.node, None if event.node in self._nodes else 0.0)
        self._nodes[event.node] = max(event.gpus, self._nodes.get(event.node, 0))
        if since is not None:
            self._was_down(event.node, since, event.at)

    def _node_down(self, event: ev.NodeDown) -> None:
        self._down_since[event.node] = event.at
        hit: dict[JobId, None] = {}
        for index in range(self._nodes[event.node]):
            job = self._leave(Gpu(event.node, index))
            if job is not None:
                hit[job] = None
        for job in hit:
            self._see_job(job)

    # what is seen

    def _held(self, job: JobId) -> Allocation | None:
        record = self._state.records.get(job)
        return record.held if record is not None else None

    def _show(self, job: JobId, worker: Worker, phase: WorkerPhase) -> None:
        """From now on the worker is like this; where it was so already, its segment goes on."""
        gpu = worker.gpu
        before = self._present.get(gpu)
        now = _Present(job, self._state.now, worker.batch, worker.micro_steps, phase)
        if before is not None and before._replace(start=now.start) == now:
            return
        self._leave(gpu)
        self._present[gpu] = now
        self._workers[job] = self._workers.get(job, 0) + 1

    def _leave(self, gpu: Gpu) -> JobId | None:
        """Whoever was there is there no more; says who it was."""
        gone = self._present.pop(gpu, None)
        if gone is None:
            return None
        self._workers[gone.job] -= 1
        if gone.start < self._state.now:
            self._segments.append(
                Segment(
                    gpu,
                    gone.job,
                    gone.start,
                    self._state.now,
                    gone.batch,
                    gone.micro_steps,
                    gone.phase,
                )
            )
        return gone.job

    def _see_job(self, job: JobId) -> None:
        held = self._held(job)
        point = JobPoint(
            self._state.now, self._workers.get(job, 0), held.batch if held is not None else 0
        )
        points = self._history.setdefault(job, [])
        if points and points[-1].at == point.at:
            points.pop()
        if not points or points[-1][1:] != point[1:]:
            points.append(point)

    def _see_queue(self) -> None:
        now, length = self._state.now, len(self._state.waiting)
        times, lengths = self._queue_times, self._queue_lengths
        if times and lengths[-1] == length:
            return
        if times and times[-1] == now:
            times.pop()
            lengths.pop()
            if times and lengths[-1] == length:
                return
        times.append(now)
        lengths.append(length)

    def _was_down(self, node: NodeId, since: float, until: float) -> None:
        if since < until:
            self._down.setdefault(node, []).append((since, until))
