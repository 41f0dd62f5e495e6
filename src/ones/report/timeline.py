"""The timeline of a run log: which worker was on which GPU when, with which batch.

The log is applied to a `State`, and after each entry only its jobs are examined, so the cost is
proportional to the entries. A GPU is occupied from the order to start a worker until the worker is
known to have left.
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
class WorkerSegment:
    """One worker on one GPU, while nothing about it changes."""

    gpu: Gpu
    job: JobId
    start: float
    end: float
    batch: int  # local, per optimizer step; 0: the script's own, not known yet
    micro_steps: int
    phase: WorkerPhase


class JobEnd(NamedTuple):
    at: float
    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """A whole run. Values of step functions hold until the next time."""

    begin: float  # the first entry
    end: float  # the last one
    segments: tuple[WorkerSegment, ...]  # by start, then in the order of `gpus`
    gpus: tuple[Gpu, ...]  # in the cluster's order, of all nodes that were ever up
    down: Mapping[NodeId, tuple[tuple[float, float], ...]]  # before a node first came up, too
    submissions: Mapping[JobId, float]  # in order of submission
    ends: Mapping[JobId, JobEnd]
    queue_times: list[float]
    queue_lengths: list[int]


def timeline_of(cluster: Cluster, entries: Iterable[Entry]) -> RunTimeline:
    """The timeline of a log, given the cluster of its header. It ends with the log."""
    builder = _TimelineBuilder(cluster)
    for entry in entries:
        builder.add(entry)
    return builder.timeline()


class _OpenSegment(NamedTuple):
    """A segment that has not ended yet."""

    job: JobId
    start: float
    batch: int
    micro_steps: int
    phase: WorkerPhase


class _TimelineBuilder:
    """Applies a log to a `State` and records the changes."""

    def __init__(self, cluster: Cluster) -> None:
        self._state = State(cluster)
        self._begin: float | None = None
        self._segments: list[WorkerSegment] = []
        self._open: dict[Gpu, _OpenSegment] = {}
        self._nodes = {node.id: node.gpus for node in cluster.nodes.values()}
        self._down: dict[NodeId, list[tuple[float, float]]] = {}
        self._down_since = {
            node.id: 0.0 for node in cluster.nodes.values() if node.state is NodeState.DOWN
        }
        self._submissions: dict[JobId, float] = {}
        self._ends: dict[JobId, JobEnd] = {}
        self._queue_times: list[float] = []
        self._queue_lengths: list[int] = []

    def add(self, entry: Entry) -> None:
        if self._begin is None:
            self._begin = entry.at
        if isinstance(entry, Plan):
            self._adopt(entry)
        else:
            self._apply(entry)
        self._record_queue()

    def timeline(self) -> RunTimeline:
        now = self._state.now
        for gpu in list(self._open):
            self._end_segment(gpu)
        for node, since in self._down_since.items():
            self._record_down(node, since, now)
        gpus = tuple(Gpu(node, i) for node, count in self._nodes.items() for i in range(count))
        row = {gpu: i for i, gpu in enumerate(gpus)}
        return RunTimeline(
            begin=now if self._begin is None else self._begin,
            end=now,
            segments=tuple(sorted(self._segments, key=lambda s: (s.start, row[s.gpu]))),
            gpus=gpus,
            down={node: tuple(spells) for node, spells in self._down.items()},
            submissions=self._submissions,
            ends=self._ends,
            queue_times=self._queue_times,
            queue_lengths=self._queue_lengths,
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
                        self._set_worker(action.job, worker, "starting")

    def _apply(self, event: ev.Event) -> None:
        before = self._held(event.job) if isinstance(event, ev.WorkerReady | ev.Rescaled) else None
        if not apply(self._state, event):
            return
        match event:
            case ev.JobSubmitted():
                self._submissions[event.job.id] = event.job.submitted_at
            case ev.WorkerReady() | ev.Rescaled():
                self._set_training(event.job, before)
            case ev.JobDescribed():
                self._set_batch(event.job)
            case ev.WorkerLeft() | ev.WorkerLost():
                self._end_segment(event.gpu)
            case ev.JobEnded():
                self._ends[event.job] = JobEnd(event.at, self._state.ended[event.job].reason)
            case ev.NodeUp():
                self._node_up(event)
            case ev.NodeDown():
                self._node_down(event)
            case _:  # concerns no worker
                pass

    def _set_training(self, job: JobId, before: Allocation | None) -> None:
        """All workers of a start or rescale train: `held` has changed."""
        held = self._held(job)
        if held is None or held is before:
            return
        for worker in held.workers:
            if worker.gpu in self._open:
                self._set_worker(job, worker, "training")

    def _set_batch(self, job: JobId) -> None:
        """The script's own batch is known now: sets it for workers without one."""
        record = self._state.records[job]
        ordered = record.in_flight.allocation if record.in_flight else None
        for allocation in (ordered, record.held):
            for worker in allocation.workers if allocation else ():
                segment = self._open.get(worker.gpu)
                if segment is not None and segment.job == job and not segment.batch:
                    self._set_worker(job, worker, segment.phase)

    def _node_up(self, event: ev.NodeUp) -> None:
        since = self._down_since.pop(event.node, None if event.node in self._nodes else 0.0)
        self._nodes[event.node] = max(event.gpus, self._nodes.get(event.node, 0))
        if since is not None:
            self._record_down(event.node, since, event.at)

    def _node_down(self, event: ev.NodeDown) -> None:
        self._down_since[event.node] = event.at
        for index in range(self._nodes[event.node]):
            self._end_segment(Gpu(event.node, index))

    # recording

    def _held(self, job: JobId) -> Allocation | None:
        record = self._state.records.get(job)
        return record.held if record is not None else None

    def _set_worker(self, job: JobId, worker: Worker, phase: WorkerPhase) -> None:
        """Starts a segment for a worker, unless its current one is equal."""
        gpu = worker.gpu
        before = self._open.get(gpu)
        now = _OpenSegment(job, self._state.now, worker.batch, worker.micro_steps, phase)
        if before is not None and before._replace(start=now.start) == now:
            return
        self._end_segment(gpu)
        self._open[gpu] = now

    def _end_segment(self, gpu: Gpu) -> None:
        gone = self._open.pop(gpu, None)
        if gone is not None and gone.start < self._state.now:
            self._segments.append(
                WorkerSegment(
                    gpu,
                    gone.job,
                    gone.start,
                    self._state.now,
                    gone.batch,
                    gone.micro_steps,
                    gone.phase,
                )
            )

    def _record_queue(self) -> None:
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

    def _record_down(self, node: NodeId, since: float, until: float) -> None:
        if since < until:
            self._down.setdefault(node, []).append((since, until))
