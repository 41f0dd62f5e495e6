"""Another simulator, scheduled by `ones`: events go in, plans come out.

Six synthetic kinds of jobs on 32 GPUs; decisions once a minute; every change costs 30 s.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ones.core import (
    Allocation,
    Cluster,
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
from ones.core.job import Configuration, SwitchCost
from ones.core.plan import Finish, Rescale, Start, Stop
from ones.policies import create


@dataclass(frozen=True)
class Kind:
    base_batch: int
    fits: int  # samples on one GPU at once
    size: int  # samples of an epoch
    epochs: int  # with the base batch
    step: float  # seconds of a step, and more for each sample
    sample: float
    noise: float  # gradient noise scale, in samples


KINDS = {
    "tiny": Kind(32, 256, 2_000, 5, 0.01, 0.0008, 200.0),
    "image": Kind(128, 1024, 50_000, 60, 0.02, 0.0005, 2_000.0),
    "speech": Kind(20, 32, 14_000, 10, 0.10, 0.0550, 150.0),
    "text": Kind(12, 24, 88_000, 1, 0.05, 0.0400, 80.0),
    "boxes": Kind(8, 8, 16_500, 5, 0.08, 0.1100, 90.0),
    "large": Kind(200, 100, 300_000, 12, 0.05, 0.0060, 8_000.0),
}


NEVER = Generation(0)  # of a job that has not run yet


@dataclass
class Training:
    """A job of this simulator."""

    job: Job
    kind: Kind
    generation: Generation = NEVER
    runs: Allocation | None = None
    paused_until: float = 0.0
    work: float = 0.0  # effective samples done; no policy sees this
    epochs: int = 0
    samples: float = 0.0  # of the current epoch

    def step_seconds(self, runs: Allocation) -> float:
        network = 0.0 if runs.n_gpus == 1 else self.kind.step * (0.3 if runs.n_nodes == 1 else 1.5)
        share, parts = -(-runs.batch // runs.n_gpus), runs.workers[0].micro_steps
        return parts * self.kind.step + share * self.kind.sample + network

    def worth(self, runs: Allocation) -> float:
        """Statistical efficiency of a sample in a batch of this size."""
        kind = self.kind
        return min(1.0, (kind.noise + kind.base_batch) / (kind.noise + runs.batch))


class Simulator:
    def __init__(
        self, scheduler: Scheduler, jobs: list[Training], tick: float, cost: float
    ) -> None:
        self.scheduler, self.tick, self.cost, self.now = scheduler, tick, cost, 0.0
        self.arrivals = sorted(jobs, key=lambda t: t.job.submitted_at)
        self.active: dict[JobId, Training] = {}
        self.seconds: dict[JobId, float] = {}  # completion times
        self.events: deque[Event] = deque()  # not handled by the scheduler yet

    def run(self) -> dict[JobId, float]:
        while self.arrivals or self.active:
            for t in list(self.active.values()):
                self.events += self.train(t)
            self.now += self.tick
            while self.arrivals and self.arrivals[0].job.submitted_at <= self.now:
                t = self.arrivals.pop(0)
                self.active[t.job.id] = t
                self.events.append(ev.JobSubmitted(self.now, t.job))
            self.deliver()
            self.carry_out(self.scheduler.handle(ev.Woke(self.now)))  # decides
            self.deliver()
        return self.seconds

    def deliver(self) -> None:
        """Handles events without a new decision; a freed GPU may complete an earlier one."""
        while self.events:
            self.carry_out(self.scheduler.handle(self.events.popleft(), decide=False))

    def train(self, t: Training) -> list[Event]:
        """Trains until the next tick; returns the reports."""
        end, start = self.now + self.tick, max(self.now, t.paused_until)
        if t.runs is None or start >= end:
            return []
        runs, kind, job, generation = t.runs, t.kind, t.job.id, t.generation
        step, worth = t.step_seconds(runs), t.worth(runs)
        left = (kind.size * kind.epochs - t.work) * step / runs.batch / worth
        seconds = min(end - start, left)
        samples = seconds / step * runs.batch
        t.work, t.samples = t.work + samples * worth, t.samples + samples
        how = Configuration(runs.n_gpus, runs.n_nodes, runs.batch, runs.workers[0].micro_steps)
        steps = max(1, round(seconds / step))
        reports: list[Event] = [
            ev.ThroughputMeasured(
                at=end,
                configuration=how,
                step_seconds=step,
                steps=steps,
                job=job,
                generation=generation,
            )
        ]
        while t.samples >= kind.size:
            t.samples, t.epochs = t.samples - kind.size, t.epochs + 1
            loss = 3.0 * 0.8 ** (t.work / kind.size)
            reports.append(
                ev.EpochFinished(
                    at=end, epoch=t.epochs, samples=kind.size, steps=-(-kind.size // runs.batch),
                    loss=loss, first_loss=3.0, step_seconds=step, gradient_noise=kind.noise,
                    job=job, generation=generation,
                )
            )  # fmt: skip
        done = int(t.samples)
        reports.append(
            ev.StepsDone(
                at=end,
                epoch=t.epochs + 1,
                steps=done // runs.batch,
                samples=done,
                gradient_noise=kind.noise,
                job=job,
                generation=generation,
            )
        )
        if seconds == left:
            self.seconds[job] = start + seconds - t.job.submitted_at
            del self.active[job]
            reports.append(ev.JobEnded(end, job, EndReason.FINISHED, generation=generation))
            reports += [ev.WorkerLeft(end, job, generation, gpu) for gpu in runs.gpus]
        return reports

    def carry_out(self, plan: Plan) -> None:
        for order in plan.actions:
            t = self.active.get(order.job)
            if t is None and isinstance(order, Start | Rescale):  # it has ended: no worker starts
                self.leave(order.job, Generation(plan.number), order.allocation.gpus)
            elif t is not None and isinstance(order, Start | Rescale):
                self.change(t, order.allocation, Generation(plan.number))
            elif t is not None and isinstance(order, Stop):
                self.change(t, None, t.generation)
            elif t is not None and isinstance(order, Finish):  # the core has given the job up
                del self.active[order.job]
                self.events.append(ev.JobEnded(self.now, order.job, order.reason))
                self.change(t, None, t.generation)

    def leave(self, job: JobId, generation: Generation, gpus: Iterable[Gpu]) -> None:
        self.events += [ev.WorkerLeft(self.now, job, generation, gpu) for gpu in gpus]

    def change(self, t: Training, to: Allocation | None, generation: Generation) -> None:
        """Changes the allocation, with a pause; reports every worker that joins or leaves."""
        job, kind, old = t.job.id, t.kind, t.generation
        before, after = t.runs.gpus if t.runs else (), to.gpus if to else ()
        if to is not None:
            to = to.resolved(kind.base_batch, kind.fits)  # the script's own batch, if it has none
        t.runs, t.generation, t.paused_until = to, generation, self.now + self.cost
        # in the order of the allocation: the order of a set differs from run to run
        self.leave(job, old, [gpu for gpu in before if gpu not in after])
        for gpu in after:
            if gpu not in before:
                self.events.append(ev.WorkerReady(self.now, job, generation, gpu))
        if before and after:
            self.events.append(ev.Rescaled(self.now, job, generation, self.cost))
        elif after:
            self.events.append(
                ev.JobDescribed(
                    at=self.now, job=job, generation=generation, dataset_size=kind.size,
                    base_batch=kind.base_batch, max_local_batch=kind.fits,
                )
            )  # fmt: skip


def workload(seed: int, n: int, *, apart: float = 60.0, hide: bool = False) -> list[Training]:
    rng = random.Random(seed)
    found = []
    for i in range(n):
        name = rng.choice(list(KINDS))
        kind = replace(
            KINDS[name], epochs=max(1, round(KINDS[name].epochs * rng.uniform(0.7, 1.4)))
        )
        job = Job(id=JobId(f"{name}-{i}"), submitted_at=apart * i, kind="" if hide else name)
        found.append(Training(job, kind))
    return found


def mean_completion(policy: str, jobs: list[Training], *, tick: float, cost: float) -> float:
    scheduler = Scheduler(Cluster.of(32), create(policy), switch_cost=SwitchCost(cost, cost))
    seconds = Simulator(scheduler, jobs, tick, cost).run()
    return sum(seconds.values()) / len(seconds)


if __name__ == "__main__":
    for policy in ("fifo", "equi", "ones"):
        seconds = mean_completion(policy, workload(1, 60), tick=60.0, cost=30.0)
        print(f"{policy:5} {seconds:6,.0f} s")
