"""Durations of starts, rescales and exits of processes, measured in a calibration run.

Everything is read from run logs of the service: times of events, and pauses that workers measured.
Nothing is read from the run that is to be predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from ones.core import events as ev
from ones.core.actions import adopt
from ones.core.job import JobId
from ones.core.plan import Plan, Prepare, Rescale, Start, Stop
from ones.core.record import JobRecord
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.core.transitions import apply
from ones.errors import WorldError
from ones.lab.bench.fidelity.paced_jobs import KINDS
from ones.runlog import RunLog
from ones.sim.physics import SwitchTimes

#: what is measured, one list of seconds each
NAMES = (
    "first_start", "restart", "newcomer", "prepared_newcomer", "rescale", "notice", "regroup",
    "leave", "stop", "finish", "clear", "epoch", "recover",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    times: SwitchTimes
    overhead: tuple[tuple[int, float], ...]  # workers -> seconds of a step without its arithmetic
    samples: Mapping[str, Sequence[float]]

    def overhead_seconds(self, workers: int) -> float:
        known = dict(self.overhead)
        return float(np.interp(workers, list(known), list(known.values())))

    def row(self) -> dict[str, Any]:
        """The mean of each duration in milliseconds, and the number of its samples."""
        means = {f"{k}_ms": round(1000 * fmean(v), 1) for k, v in self.samples.items() if v}
        counts = {f"{k}_n": len(v) for k, v in self.samples.items() if v}
        steps = {f"step_overhead_{n}_ms": round(1000 * s, 2) for n, s in self.overhead}
        return {**means, **steps, **counts}


@dataclass(slots=True)
class _Order:
    action: Start | Rescale | Stop
    at: float
    prepared: bool
    joins: bool = False
    step: float = 0.0  # seconds of a step at that time


@dataclass(slots=True)
class _Job:
    starts: int = 0
    order: _Order | None = None
    prepared: bool = False
    changed_at: float = 0.0  # the last switch, or the end
    ended: bool = False
    epoch_at: float | None = None  # the last epoch's end, if nothing has changed since
    last_epoch: float = 0.0
    lost_at: float | None = None


@dataclass(slots=True)
class Calibrator:
    """Reads run logs and collects the duration of every change."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {n: [] for n in NAMES})
    overheads: dict[int, list[float]] = field(default_factory=dict)  # by workers
    kinds: dict[JobId, str] = field(default_factory=dict)

    def read(self, log: RunLog) -> None:
        state = State(log.header.cluster, log.header.switch_cost)
        jobs: dict[JobId, _Job] = {}
        for entry in log:
            if isinstance(entry, Plan):
                self._note_orders(entry, state, jobs)
                adopt(state, entry)
                continue
            if isinstance(entry, ev.JobSubmitted):
                self.kinds[entry.job.id] = entry.job.kind
            name = getattr(entry, "job", None)
            record = state.records.get(JobId(name)) if isinstance(name, str) else None
            held = record.held if record is not None else None
            if not apply(state, entry) or not isinstance(name, str):
                continue
            job = jobs.setdefault(JobId(name), _Job())
            if record is not None:
                self._observe(entry, job, record, held)
            elif job.ended and isinstance(entry, ev.WorkerLeft):
                self.seconds["clear"].append(entry.at - job.changed_at)

    def _note_orders(self, plan: Plan, state: State, jobs: dict[JobId, _Job]) -> None:
        for action in plan.actions:
            job = jobs.setdefault(action.job, _Job())
            if isinstance(action, Prepare):
                job.prepared = True
                continue
            job.epoch_at = None
            record = state.records[action.job]
            if isinstance(action, Start | Rescale | Stop):
                held = record.held
                order = _Order(action, plan.at, job.prepared, step=record.step_seconds or 0.0)
                if isinstance(action, Rescale) and held is not None:
                    order.joins = not set(action.allocation.gpus) <= set(held.gpus)
                usable = held is not None or isinstance(action, Start)
                job.order = order if usable else None
                if not isinstance(action, Stop):
                    job.prepared = False

    def _observe(
        self, event: ev.Event, job: _Job, record: JobRecord, held: Allocation | None
    ) -> None:
        order = job.order
        match event:
            case ev.WorkerReady():
                if order is not None and isinstance(order.action, Start) and not record.in_flight:
                    which = "restart" if job.starts else "first_start"
                    self.seconds[which].append(event.at - order.at)
                    job.starts, job.order = job.starts + 1, None
            case ev.Rescaled():
                self._rescaled(event, job)
            case ev.WorkerLeft():
                self._left(event.at, job, record)
            case ev.WorkerLost():
                job.order, job.epoch_at, job.lost_at = None, None, event.at
            case ev.RescaleFailed():
                job.order = None
            case ev.EpochFinished():
                self._epoch(event, job, held)
            case ev.JobEnded():
                if job.last_epoch:
                    self.seconds["finish"].append(event.at - job.last_epoch)
                job.ended, job.changed_at, job.order = True, event.at, None
            case _:
                pass

    def _left(self, at: float, job: _Job, record: JobRecord) -> None:
        order = job.order
        if order is not None and isinstance(order.action, Stop):
            if not record.occupied:
                self.seconds["stop"].append(at - order.at - order.step / 2)
                job.order = None
        elif order is None and job.changed_at:
            self.seconds["leave"].append(at - job.changed_at)

    def _rescaled(self, event: ev.Rescaled, job: _Job) -> None:
        job.epoch_at = None
        pause, order = event.pause_seconds, job.order
        if job.lost_at is not None:
            self.seconds["recover"].append(max(pause, event.at - job.lost_at))
            job.lost_at = None
            return
        if order is None or not isinstance(order.action, Rescale):
            return
        # on average half a step passes until the current one is done
        waited = event.at - order.at - pause - order.step / 2
        if order.joins:
            which = "prepared_newcomer" if order.prepared else "newcomer"
            self.seconds[which].append(waited)
            self.seconds["rescale"].append(pause)
        else:
            self.seconds["notice"].append(waited)
            self.seconds["regroup"].append(pause)
        job.order, job.changed_at = None, event.at - pause

    def _epoch(self, event: ev.EpochFinished, job: _Job, held: Allocation | None) -> None:
        if job.epoch_at is not None and held is not None and event.step_seconds is not None:
            between = event.at - job.epoch_at - event.steps * event.step_seconds
            self.seconds["epoch"].append(between)
            kind = KINDS[self.kinds[event.job]]
            beside = event.step_seconds - kind.compute_seconds(held)
            self.overheads.setdefault(held.n_gpus, []).append(beside)
        job.epoch_at = job.last_epoch = event.at

    def result(self) -> MeasuredTimes:
        """The means. A change that did not happen takes as long as the most similar one."""
        seconds = {name: [max(0.0, s) for s in all_] for name, all_ in self.seconds.items()}
        for name in ("first_start", "finish", "clear"):
            if not seconds[name]:
                raise WorldError(f"the calibration run showed no {name}")
        mean = {name: fmean(all_) for name, all_ in seconds.items() if all_}
        joined = [*seconds["newcomer"], *seconds["prepared_newcomer"]]
        cold = mean.get("newcomer", mean.get("restart", mean["first_start"]))
        early = mean.get("prepared_newcomer", cold) < 0.5 * cold
        if joined and not early:
            cold = fmean(joined)
        pause = mean.get("rescale", 0.0)
        times = SwitchTimes(
            first_start=mean["first_start"],
            join=cold,
            regroup=mean.get("regroup", pause),
            rescale=pause,
            restart=mean.get("restart", mean["first_start"]),
            notice=mean.get("notice", 0.0),
            leave=mean.get("leave", mean["clear"]),
            stop=mean.get("stop", mean["clear"]),
            finish=mean["finish"],
            clear=mean["clear"],
            epoch=mean.get("epoch", 0.0),
            recover=mean.get("recover"),
            warms_early=early,
        )
        overhead = sorted((n, fmean(all_)) for n, all_ in self.overheads.items())
        return MeasuredTimes(times, tuple(overhead or [(1, 0.0)]), self.seconds)
