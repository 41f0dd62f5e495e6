"""An engine with random behaviour, to test invariants of the core.

`ChaosEngine` carries out orders after random delays or lets them fail. Workers and nodes die,
nodes are drained, jobs are cancelled, and reports arrive with old generations. It depends on its
seed only.
"""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from ones.core import (
    Allocation,
    Cluster,
    Dependency,
    EndReason,
    Event,
    Generation,
    Gpu,
    Job,
    JobId,
    Plan,
)
from ones.core import events as ev
from ones.core.plan import Finish, Prepare, Rescale, Start, Stop, Withdraw


class ChaosEngine:
    """Jobs on nodes with random failures, drawn from a seed. Ends when all jobs have ended."""

    def __init__(self, cluster: Cluster, n_jobs: int, seed: int, *, trouble: float = 0.1) -> None:
        self._dice = Random(seed)
        users = Random(-1 - seed)  # their changes of jobs leave the other draws as they are
        self._trouble = trouble
        self._now = 0.0
        self._todo: list[tuple[float, int, Event | tuple[str, Any]]] = []
        self._counter = 0
        self._nodes = {n.id: n.gpus for n in cluster.nodes.values()}
        self.where: dict[Gpu, JobId] = {}  # processes that exist
        self._process: dict[Gpu, int] = {}  # number of the process on each GPU
        self.members: dict[JobId, dict[Gpu, int]] = {}  # GPUs of the workers that train a job
        self.generation: dict[JobId, Generation] = {}
        self.orders: dict[JobId, int] = {}  # last order; answers to earlier ones are dropped
        self.alive: set[JobId] = set()
        for i in range(n_jobs):
            at = self._dice.uniform(0, 20)
            job = Job(
                id=JobId(f"j{i}"),
                submitted_at=at,
                owner=self._dice.choice("ab"),
                priority=float(self._dice.randint(0, 2)),
                retries=3,
            )
            if i and users.random() < trouble:
                other = Dependency(JobId(f"j{users.randrange(i)}"), users.random() < 0.5)
                job = replace(job, after=(other,))
            if users.random() < trouble:
                job = replace(job, array="array", array_limit=2)
            self._later(at, ev.JobSubmitted(at, job))
            self._change(users, job.id, trouble)
        if seed % 2:  # past use counts, from the beginning or from later on, and not to the end
            for at, half_life in ((10.0 * (seed % 4 > 2), 30.0), (60.0, 0.0)):
                self._later(at, ev.FairShareSet(at, half_life, {"a": 500.0} if half_life else {}))
        for node in self._nodes:
            if self._dice.random() < 2 * trouble:
                at = self._dice.uniform(5, 60)
                self._later(at, ("down", node))
                self._later(at + self._dice.uniform(1, 30), ("up", node))
            elif self._dice.random() < trouble:
                at = self._dice.uniform(5, 60)
                self._later(at, ev.NodeDraining(at, node))
                self._later(at + 20, ("up", node))
            elif self._dice.random() < 2 * trouble:
                at = self._dice.uniform(5, 60)
                gpu = Gpu(node, self._dice.randrange(self._nodes[node]))
                self._later(at, ev.GpuSetAside(at, gpu, "chaos"))
                self._later(at + 20, ev.GpuReturned(at + 20, gpu))

    def _change(self, users: Random, job: JobId, trouble: float) -> None:
        """A user holds the job, and releases it later, or changes its sizes."""
        at = users.uniform(0, 60)
        if users.random() < 2 * trouble:
            self._later(at, ev.JobHeld(at, job, "chaos"))
            self._later(at + 20, ev.JobReleased(at + 20, job, "chaos"))
        if users.random() < 2 * trouble:
            least, most = users.choice(((1, 1), (2, 4), (3, 0), (1, 2)))
            self._later(at, ev.JobChanged(at=at, job=job, min_gpus=least, max_gpus=most))
            at += 20
            self._later(at, ev.JobChanged(at=at, job=job, priority=1.0, min_gpus=1, max_gpus=0))

    def _later(self, at: float, what: Event | tuple[str, Any]) -> None:
        self._counter += 1
        self._todo.append((max(at, self._now), self._counter, what))

    def next_event(self, until: float) -> Event | None:
        while True:
            if not self._todo and not self.alive:
                return None
            first = min(self._todo, default=None, key=lambda entry: entry[:2])
            if first is None or until < first[0]:
                if until == float("inf"):
                    return None
                self._now = max(self._now, until)
                return ev.Woke(self._now)
            self._todo.remove(first)
            self._now = first[0]
            event = first[2] if not isinstance(first[2], tuple) else self._happen(*first[2])
            if event is not None:
                if isinstance(event, ev.JobSubmitted):
                    self.alive.add(event.job.id)
                return event

    # scheduled happenings

    def _happen(self, what: str, subject: Any) -> Event | None:  # noqa: ANN401 any arguments
        if what == "down":
            lost = [g for g in self.where if g.node == subject]
            for gpu in lost:
                self._die(gpu)
            return ev.NodeDown(self._now, subject)
        if what == "up":
            return ev.NodeUp(self._now, subject, self._nodes[subject])
        handler: Event | None = getattr(self, f"_{what}")(*subject)
        return handler

    def _die(self, gpu: Gpu) -> None:
        """Removes a process; if it was a member of its job, the other members regroup."""
        job = self.where.pop(gpu)
        was_member = self.members.get(job, {}).pop(gpu, None) is not None
        if job not in self.alive:
            return
        if was_member and self.members[job]:
            self._later(self._now + 1, ("reform", (job, self._bump(job))))

    def _bump(self, job: JobId) -> int:
        self.orders[job] = self.orders.get(job, 0) + 1
        return self.orders[job]

    def _reform(self, job: JobId, order: int) -> Event | None:
        if job not in self.alive or self.orders[job] != order or not self.members.get(job):
            return None
        plan, incarnation = self.generation[job]
        self.generation[job] = Generation(plan, incarnation + 1)
        self._train(job)
        return ev.Rescaled(self._now, job, self.generation[job], 0.5)

    def _train(self, job: JobId) -> None:
        order = self.orders[job]
        self._later(self._now + self._dice.uniform(1, 8), ("epoch", (job, order, 1)))

    def _epoch(self, job: JobId, order: int, n: int) -> Event | None:
        if job not in self.alive or self.orders[job] != order:
            return None
        dice = self._dice.random()
        gen = self.generation[job]
        if dice < 0.25:
            return self._end(job, EndReason.FINISHED)
        if dice < 0.25 + self._trouble / 2 and self.members[job]:
            gpu = self._dice.choice(sorted(self.members[job]))
            self._die(gpu)
            return ev.WorkerLost(self._now, job, gen, gpu, "chaos")
        if dice < 0.25 + self._trouble:
            return ev.CancelRequested(self._now, job, "chaos")
        self._later(self._now + self._dice.uniform(1, 8), ("epoch", (job, order, n + 1)))
        if n == 1 and self._dice.random() < 0.3:
            return ev.JobDescribed(
                at=self._now, job=job, generation=gen, dataset_size=100, base_batch=16,
                max_local_batch=self._dice.choice((None, 16, 64)),
            )  # fmt: skip
        if self._dice.random() < 0.05:
            return ev.PriorityChanged(self._now, job, float(self._dice.randint(-1, 3)))
        if self._dice.random() < 0.05:
            return ev.MemoryLimitLearned(
                at=self._now, job=job, generation=gen, max_local_batch=self._dice.choice((4, 16))
            )
        if self._dice.random() < 0.1:
            old = Generation(max(0, gen.plan - self._dice.randint(0, 5)), 0)
            return ev.EpochFinished(
                at=self._now, job=job, generation=old, epoch=n, samples=100, steps=10
            )
        return ev.EpochFinished(
            at=self._now, job=job, generation=gen, epoch=n, samples=100, steps=10, loss=1.0 / n
        )

    def _end(self, job: JobId, reason: EndReason) -> Event:
        self.alive.discard(job)
        self._bump(job)
        for gpu in [g for g, j in self.where.items() if j == job]:
            self._later(
                self._now + self._dice.uniform(0, 2), ("left", (job, gpu, self._process[gpu]))
            )
        return ev.JobEnded(self._now, job, reason)

    def _left(self, job: JobId, gpu: Gpu, process: int) -> Event | None:
        if self.where.get(gpu) != job or self._process[gpu] != process:
            return None
        del self.where[gpu]
        self.members.get(job, {}).pop(gpu, None)
        return ev.WorkerLeft(self._now, job, Generation(10**6), gpu)

    # orders

    def carry_out(self, plan: Plan) -> None:
        for action in plan.actions:
            job = action.job
            assert job in self.alive, f"order for {job}, which has ended"
            if isinstance(action, Prepare | Withdraw):
                continue
            order = self._bump(job)
            soon = self._now + self._dice.uniform(0, 5)
            match action:
                case Start():
                    assert not self.members.get(job), f"{job} was started while it trains"
                    self._enter(job, action.allocation.gpus)
                    self.generation[job] = Generation(plan.number)
                    self.members[job] = {}
                    self._later(soon, ("ready", (job, order, action.allocation.gpus, 0)))
                case Rescale():
                    stay = [g for g in action.allocation.gpus if g in self.members[job]]
                    assert stay or not self.members[job], (
                        f"rescale of {job} without a staying worker"
                    )
                    self._enter(job, action.allocation.gpus)
                    self._train_on(job, order)
                    self._later(soon, ("switch", (job, order, plan.number, action.allocation)))
                case Stop():
                    there = [(g, self._process[g]) for g, j in self.where.items() if j == job]
                    self._later(soon, ("leave_all", (job, there)))
                case Finish():
                    self._later(soon, ("finish", (job, action.reason)))

    def _train_on(self, job: JobId, order: int) -> None:
        """Keeps reporting epochs until the switch happens."""
        self._later(self._now + self._dice.uniform(0, 4), ("epoch", (job, order, 10**4)))

    def _enter(self, job: JobId, gpus: tuple[Gpu, ...]) -> None:
        for gpu in gpus:
            other = self.where.get(gpu)
            stays = other == job and gpu in self.members[job]
            assert other is None or stays, f"{job} was placed on {gpu}, which {other} still uses"
            if other is None:
                self._counter += 1
                self._process[gpu] = self._counter
            self.where[gpu] = job

    def _ready(self, job: JobId, order: int, gpus: tuple[Gpu, ...], n: int) -> Event | None:
        if job not in self.alive or self.orders[job] != order:
            return None
        if any(self.where.get(g) != job for g in gpus):
            return None  # a worker died: the core will stop the others
        if self._dice.random() < self._trouble:
            for gpu in gpus:
                self._later(
                    self._now + self._dice.uniform(0, 2), ("left", (job, gpu, self._process[gpu]))
                )
            self._bump(job)
            return ev.RescaleFailed(self._now, job, self.generation[job], "chaos")
        self.members[job][gpus[n]] = 1
        if n + 1 < len(gpus):
            self._later(self._now, ("ready", (job, order, gpus, n + 1)))
        else:
            self._train(job)
        batch = self._dice.choice((None, 8 * len(gpus)))
        return ev.WorkerReady(self._now, job, self.generation[job], gpus[n], batch)

    def _switch(self, job: JobId, order: int, plan: int, allocation: Allocation) -> Event | None:
        if job not in self.alive:
            return None
        whole = all(self.where.get(g) == job for g in allocation.gpus)
        if self.orders[job] != order or not whole or self._dice.random() < self._trouble:
            if not self.members.get(job):
                return None  # no member is left: the core stops the other workers
            for gpu in allocation.gpus:
                if gpu not in self.members[job] and self.where.get(gpu) == job:
                    self._later(self._now + 0.1, ("left", (job, gpu, self._process[gpu])))
            return ev.RescaleFailed(self._now, job, Generation(plan), "chaos")
        for gpu in [g for g in self.members[job] if g not in allocation.gpus]:
            self._later(
                self._now + self._dice.uniform(0, 2), ("left", (job, gpu, self._process[gpu]))
            )
        self.members[job] = dict.fromkeys(allocation.gpus, 1)
        self.generation[job] = Generation(plan)
        self._bump(job)
        self._train(job)
        batch = self._dice.choice((None, allocation.batch + allocation.n_gpus))
        return ev.Rescaled(self._now, job, Generation(plan), 0.5, batch=batch)

    def _leave_all(self, job: JobId, there: list[tuple[Gpu, int]]) -> Event | None:
        if job in self.alive:
            for gpu, process in there:
                if self._process[gpu] == process:
                    self.members[job].pop(gpu, None)
                self._later(self._now + self._dice.uniform(0, 2), ("left", (job, gpu, process)))
        return None

    def _finish(self, job: JobId, reason: EndReason) -> Event | None:
        return self._end(job, reason) if job in self.alive else None
