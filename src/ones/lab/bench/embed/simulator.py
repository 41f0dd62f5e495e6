"""A simulator with fixed ticks and its own training model, independent of `ones.sim`.

Decisions are made at fixed intervals and every change of a job costs the same pause. Jobs report
no accuracy. `kinds` and `regime_kinds` say how they train.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

import numpy as np

from ones.core import (
    Allocation,
    Configuration,
    EndReason,
    Event,
    Generation,
    Gpu,
    Job,
    JobId,
    Plan,
    Scheduler,
)
from ones.core import events as ev
from ones.core.plan import Finish, Rescale, Start, Stop
from ones.errors import BrokenPolicyError
from ones.lab.bench.embed.kinds import TrainingKind
from ones.lab.bench.embed.size_changes import SizeChanges

#: longer than any workload takes
MAX_SECONDS = 60 * 24 * 3600.0
_NEVER = Generation(0)


@dataclass(slots=True)
class TickJob:
    """A job of this simulator."""

    job: Job
    kind: TrainingKind
    length: float = 1.0  # relative to the usual length of its kind
    noise_bias: float = 1.0  # factor of its measured gradient noise
    generation: Generation = _NEVER
    runs: Allocation | None = None
    paused_until: float = 0.0
    described: bool = False
    work: float = 0.0  # effective samples done; no policy sees this
    epochs: int = 0
    samples: float = 0.0  # of the current epoch

    @property
    def needed(self) -> float:
        return self.length * self.kind.epochs * self.kind.size

    @property
    def done(self) -> float:
        """The finished fraction of the work."""
        return min(1.0, self.work / self.needed)

    def rate(self, gpus: int, nodes: int, batch: int) -> float:
        """Effective samples per second."""
        share = -(-batch // gpus)
        step = self.kind.step_seconds(gpus, nodes, share, -(-share // self.kind.fits))
        return batch / step * self.kind.efficiency(batch, self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorRules:
    """Interval of decisions, cost of a change, accuracy of measurements."""

    tick: float = 60.0
    cost: float = 30.0
    jitter: float = 0.02  # of measured step times


class TickSimulator:
    def __init__(
        self, scheduler: Scheduler, jobs: Iterable[TickJob], rules: SimulatorRules, seed: int = 0
    ) -> None:
        self.scheduler, self.rules, self.now = scheduler, rules, 0.0
        self.active: dict[JobId, TickJob] = {}  # submitted, not ended
        self.seconds: dict[JobId, float] = {}  # completion times
        self.rescales = self.preemptions = 0
        self.size_changes = SizeChanges()
        self.cpu_seconds = 0.0  # of the scheduler
        self._arrivals = deque(sorted(jobs, key=lambda t: t.job.submitted_at))
        self._events: deque[Event] = deque()  # not handled by the scheduler yet
        self._rng = np.random.default_rng([seed, 0xE3B])

    def run(self) -> dict[JobId, float]:
        """Runs until all jobs are done. Each tick handles all events, then makes a decision."""
        tick = self.rules.tick
        while self._arrivals or self.active:
            for t in list(self.active.values()):
                self._events += self._train(t)
            self.now += tick
            if self.now > MAX_SECONDS:
                raise BrokenPolicyError(f"{len(self.active)} jobs have not ended after 60 days")
            while self._arrivals and self._arrivals[0].job.submitted_at <= self.now:
                t = self._arrivals.popleft()
                self.active[t.job.id] = t
                self._events.append(ev.JobSubmitted(self.now, t.job))
            self._handle_events()
            self._obey(self._handle(ev.Woke(self.now)))
            self._handle_events()
        return self.seconds

    def _handle_events(self) -> None:
        while self._events:
            self._obey(self._handle(self._events.popleft(), decide=False))

    def _handle(self, event: Event, *, decide: bool = True) -> Plan:
        began = time.thread_time()
        plan = self.scheduler.handle(event, decide=decide)
        self.cpu_seconds += time.thread_time() - began
        return plan

    # training

    def _train(self, t: TickJob) -> list[Event]:
        """Trains until the next tick; returns the reports."""
        end, start = self.now + self.rules.tick, max(self.now, t.paused_until)
        if t.runs is None or start >= end:
            return []
        runs, job, generation = t.runs, t.job.id, t.generation
        share, parts = max(w.batch for w in runs.workers), runs.micro_steps
        step = t.kind.step_seconds(runs.n_gpus, runs.n_nodes, share, parts)
        efficiency = t.kind.efficiency(runs.batch, t.done)
        left = (t.needed - t.work) * step / (runs.batch * efficiency)
        seconds = min(end - start, left)
        samples = seconds / step * runs.batch
        t.work, t.samples = t.work + samples * efficiency, t.samples + samples
        reports: list[Event] = []
        measured = step * exp(self.rules.jitter * float(self._rng.standard_normal()))
        if seconds >= step:
            measured_at = Configuration(runs.n_gpus, runs.n_nodes, runs.batch, parts)
            reports.append(
                ev.ThroughputMeasured(
                    at=end, job=job, generation=generation, configuration=measured_at,
                    step_seconds=measured, steps=int(seconds / step),
                )
            )  # fmt: skip
        reports += self._epochs(t, runs.batch, measured, end)
        if seconds == left:
            self.seconds[job] = start + seconds - t.job.submitted_at
            del self.active[job]
            reports.append(ev.JobEnded(end, job, EndReason.FINISHED, generation=generation))
            reports += [ev.WorkerLeft(end, job, generation, gpu) for gpu in runs.gpus]
        return reports

    def _epochs(self, t: TickJob, batch: int, step: float, at: float) -> Iterable[Event]:
        job, generation, size = t.job.id, t.generation, t.kind.size
        while t.samples >= size:
            t.samples, t.epochs = t.samples - size, t.epochs + 1
            yield ev.EpochFinished(
                at=at, job=job, generation=generation, epoch=t.epochs, samples=size,
                steps=-(-size // batch), loss=0.1 + 2.3 * exp(-3 * t.done), first_loss=2.4,
                step_seconds=step, gradient_noise=t.noise_bias * t.kind.noise(t.done),
            )  # fmt: skip
        if t.samples >= 1:
            yield ev.StepsDone(
                at=at, job=job, generation=generation, epoch=t.epochs + 1,
                steps=max(1, int(t.samples / batch)), samples=int(t.samples),
                gradient_noise=t.noise_bias * t.kind.noise(t.done),
            )  # fmt: skip

    # orders

    def _obey(self, plan: Plan) -> None:
        number = Generation(plan.number)
        for order in plan.actions:
            t = self.active.get(order.job)
            if t is None:
                if isinstance(order, Start | Rescale):  # the job has ended: no worker starts
                    self._leave(order.job, number, order.allocation.gpus)
            elif isinstance(order, Start | Rescale):
                self.rescales += isinstance(order, Rescale)
                self._change(t, order.allocation, number)
            elif isinstance(order, Stop):
                self.preemptions += 1
                self._change(t, None, t.generation)
            elif isinstance(order, Finish):  # the core has given the job up
                del self.active[order.job]
                self._events.append(ev.JobEnded(self.now, order.job, order.reason))
                self._change(t, None, t.generation)

    def _leave(self, job: JobId, generation: Generation, gpus: Iterable[Gpu]) -> None:
        self._events += [ev.WorkerLeft(self.now, job, generation, gpu) for gpu in gpus]

    def _change(self, t: TickJob, to: Allocation | None, generation: Generation) -> None:
        """Changes the allocation, with a pause; reports every worker that joins or leaves."""
        job, kind, old = t.job.id, t.kind, t.generation
        before, after = t.runs.gpus if t.runs else (), to.gpus if to else ()
        self.size_changes.changed(job, len(after), self.now)
        if to is not None and not to.batch:  # the script's own batch, not known yet
            to = Allocation.even(after, max(kind.base_batch, len(after)), kind.fits)
        t.runs, t.generation, t.paused_until = to, generation, self.now + self.rules.cost
        self._leave(job, old, (gpu for gpu in before if gpu not in set(after)))
        for gpu in after:
            if gpu not in set(before):
                self._events.append(ev.WorkerReady(self.now, job, generation, gpu))
        if before and after:
            self._events.append(ev.Rescaled(self.now, job, generation, self.rules.cost))
        elif after and not t.described:
            t.described = True
            self._events.append(
                ev.JobDescribed(
                    at=self.now, job=job, generation=generation, dataset_size=kind.size,
                    base_batch=kind.base_batch, optimizer="sgd", max_local_batch=kind.fits,
                )
            )  # fmt: skip
