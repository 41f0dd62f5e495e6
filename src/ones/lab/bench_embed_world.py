"""A simulator that is not ours: the scheduler sees of it what any stranger's would tell.

It looks at the clock at fixed intervals, every change of a job costs the same pause, and its laws
are its own: made-up kinds after the six of Pollux's evaluation, with step times and gradient noise
of that order. Nothing here knows `ones.sim` or the data that it rests on.
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
    Brain,
    Configuration,
    EndReason,
    Event,
    Generation,
    Gpu,
    Job,
    JobId,
    Plan,
)
from ones.core import events as ev
from ones.core.plan import Finish, Rescale, Start, Stop
from ones.errors import BrokenPolicyError

#: no workload of this kind takes so long
MOST_SECONDS = 60 * 24 * 3600.0
_OVERLAP = 2.5
_NEVER = Generation(0)


@dataclass(frozen=True, slots=True)
class Kind:
    base_batch: int
    fits: int  # samples on one GPU at once
    size: int  # samples of an epoch
    epochs: float  # with the base batch
    fixed: float  # seconds of a pass, and more for each sample
    sample: float
    within: float  # seconds to exchange gradients inside a node, and between nodes
    between: float
    noise: float  # gradient noise scale in samples, at the start and at the end
    last_noise: float


KINDS = {
    "cifar10": Kind(128, 1024, 50_000, 70, 0.015, 5e-4, 0.006, 0.03, 300, 4_000),
    "ncf": Kind(256, 32_768, 1_000_000, 25, 0.003, 8e-6, 0.002, 0.01, 2_000, 60_000),
    "bert": Kind(12, 9, 88_000, 2, 0.05, 0.04, 0.05, 0.25, 40, 120),
    "deepspeech2": Kind(20, 32, 14_000, 25, 0.1, 0.055, 0.03, 0.15, 50, 300),
    "yolov3": Kind(8, 8, 16_500, 25, 0.08, 0.11, 0.04, 0.2, 25, 200),
    "imagenet": Kind(200, 100, 1_280_000, 30, 0.04, 6e-3, 0.03, 0.15, 2_000, 20_000),
}


@dataclass(slots=True)
class Training:
    """A job as this simulator has it."""

    job: Job
    kind: Kind
    length: float = 1.0  # against the usual one of its kind
    generation: Generation = _NEVER
    runs: Allocation | None = None
    paused_until: float = 0.0
    described: bool = False
    work: float = 0.0  # effective samples: the truth, which no policy sees
    epochs: int = 0
    samples: float = 0.0  # of the epoch under way

    @property
    def needed(self) -> float:
        return self.length * self.kind.epochs * self.kind.size

    @property
    def noise(self) -> float:
        kind, done = self.kind, min(1.0, self.work / self.needed)
        return float(kind.noise * (kind.last_noise / kind.noise) ** done)

    def step_seconds(self, gpus: int, nodes: int, share: int, parts: int) -> float:
        kind = self.kind
        compute = parts * kind.fixed + kind.sample * share
        if gpus == 1:
            return compute
        network = (kind.within if nodes == 1 else kind.between) * (1 + 0.02 * gpus)
        return float((compute**_OVERLAP + network**_OVERLAP) ** (1 / _OVERLAP))

    def worth(self, batch: int) -> float:
        """Of a sample in a batch of this size."""
        return min(1.0, (self.noise + self.kind.base_batch) / (self.noise + batch))

    def rate(self, gpus: int, nodes: int, batch: int) -> float:
        """Effective samples a second."""
        share = -(-batch // gpus)
        step = self.step_seconds(gpus, nodes, share, -(-share // self.kind.fits))
        return batch / step * self.worth(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Of the world: when it looks, what a change costs, how exactly it measures."""

    tick: float = 60.0
    cost: float = 30.0
    jitter: float = 0.02  # of measured step times
    accuracy: bool = False  # is it reported


class World:
    def __init__(self, brain: Brain, jobs: Iterable[Training], rules: Rules, seed: int = 0) -> None:
        self.brain, self.rules, self.now = brain, rules, 0.0
        self.here: dict[JobId, Training] = {}
        self.seconds: dict[JobId, float] = {}  # completion times
        self.rescales = self.preemptions = 0
        self.cpu_seconds = 0.0  # of the scheduler
        self._coming = deque(sorted(jobs, key=lambda t: t.job.submitted_at))
        self._news: deque[Event] = deque()  # what the brain has not been told yet
        self._rng = np.random.default_rng([seed, 0xE3B])

    def run(self) -> dict[JobId, float]:
        """Until all jobs are done. At each tick all news is told, then a decision asked for."""
        tick = self.rules.tick
        while self._coming or self.here:
            for t in list(self.here.values()):
                self._news += self._train(t)
            self.now += tick
            if self.now > MOST_SECONDS:
                raise BrokenPolicyError(f"{len(self.here)} jobs have not ended after 60 days")
            while self._coming and self._coming[0].job.submitted_at <= self.now:
                t = self._coming.popleft()
                self.here[t.job.id] = t
                self._news.append(ev.JobSubmitted(self.now, t.job))
            self._tell()
            self._obey(self._handle(ev.Woke(self.now)))
            self._tell()
        return self.seconds

    def _tell(self) -> None:
        while self._news:
            self._obey(self._handle(self._news.popleft(), decide=False))

    def _handle(self, event: Event, *, decide: bool = True) -> Plan:
        began = time.thread_time()
        plan = self.brain.handle(event, decide=decide)
        self.cpu_seconds += time.thread_time() - began
        return plan

    # training

    def _train(self, t: Training) -> list[Event]:
        """Until the next tick, and what is reported then."""
        end, start = self.now + self.rules.tick, max(self.now, t.paused_until)
        if t.runs is None or start >= end:
            return []
        runs, job, who = t.runs, t.job.id, t.generation
        share, parts = max(w.batch for w in runs.workers), runs.micro_steps
        step = t.step_seconds(runs.n_gpus, runs.n_nodes, share, parts)
        worth = t.worth(runs.batch)
        left = (t.needed - t.work) * step / (runs.batch * worth)
        seconds = min(end - start, left)
        samples = seconds / step * runs.batch
        t.work, t.samples = t.work + samples * worth, t.samples + samples
        told: list[Event] = []
        measured = step * exp(self.rules.jitter * float(self._rng.standard_normal()))
        if seconds >= step:
            how = Configuration(runs.n_gpus, runs.n_nodes, runs.batch, parts)
            told.append(
                ev.ThroughputMeasured(
                    at=end, job=job, generation=who, configuration=how, step_seconds=measured,
                    steps=int(seconds / step),
                )
            )  # fmt: skip
        told += self._epochs(t, runs.batch, measured, end)
        if seconds == left:
            self.seconds[job] = start + seconds - t.job.submitted_at
            del self.here[job]
            told.append(ev.JobEnded(end, job, EndReason.FINISHED, generation=who))
            told += [ev.WorkerLeft(end, job, who, gpu) for gpu in runs.gpus]
        return told

    def _epochs(self, t: Training, batch: int, step: float, at: float) -> Iterable[Event]:
        job, who, size = t.job.id, t.generation, t.kind.size
        done = t.work / t.needed
        while t.samples >= size:
            t.samples, t.epochs = t.samples - size, t.epochs + 1
            yield ev.EpochFinished(
                at=at, job=job, generation=who, epoch=t.epochs, samples=size,
                steps=-(-size // batch), loss=0.1 + 2.3 * exp(-3 * done), first_loss=2.4,
                accuracy=0.9 * (1 - exp(-4 * done)) if self.rules.accuracy else None,
                step_seconds=step, gradient_noise=t.noise,
            )  # fmt: skip
        if t.samples >= 1:
            yield ev.StepsDone(
                at=at, job=job, generation=who, epoch=t.epochs + 1,
                steps=max(1, int(t.samples / batch)), samples=int(t.samples),
            )  # fmt: skip

    # orders

    def _obey(self, plan: Plan) -> None:
        number = Generation(plan.number)
        for order in plan.actions:
            t = self.here.get(order.job)
            if t is None:
                if isinstance(order, Start | Rescale):  # it has ended: nobody comes
                    self._leave(order.job, number, order.allocation.gpus)
            elif isinstance(order, Start | Rescale):
                self.rescales += isinstance(order, Rescale)
                self._change(t, order.allocation, number)
            elif isinstance(order, Stop):
                self.preemptions += 1
                self._change(t, None, t.generation)
            elif isinstance(order, Finish):  # the core gives it up
                del self.here[order.job]
                self._news.append(ev.JobEnded(self.now, order.job, order.reason))
                self._change(t, None, t.generation)

    def _leave(self, job: JobId, generation: Generation, gpus: Iterable[Gpu]) -> None:
        self._news += [ev.WorkerLeft(self.now, job, generation, gpu) for gpu in gpus]

    def _change(self, t: Training, to: Allocation | None, generation: Generation) -> None:
        """At once; what it costs is a pause. Every worker that leaves or comes is reported."""
        job, kind, old = t.job.id, t.kind, t.generation
        before, after = t.runs.gpus if t.runs else (), to.gpus if to else ()
        if to is not None and not to.batch:  # the script's own, which it has not told yet
            to = Allocation.even(after, max(kind.base_batch, len(after)), kind.fits)
        t.runs, t.generation, t.paused_until = to, generation, self.now + self.rules.cost
        self._leave(job, old, (gpu for gpu in before if gpu not in set(after)))
        for gpu in after:
            if gpu not in set(before):
                self._news.append(ev.WorkerReady(self.now, job, generation, gpu))
        if before and after:
            self._news.append(ev.Rescaled(self.now, job, generation, self.rules.cost))
        elif after and not t.described:
            t.described = True
            self._news.append(
                ev.JobDescribed(
                    at=self.now, job=job, generation=generation, dataset_size=kind.size,
                    base_batch=kind.base_batch, optimizer="sgd", max_local_batch=kind.fits,
                )
            )  # fmt: skip
