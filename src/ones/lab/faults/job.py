"""The true progress of one job's workers, which the controller's state is compared with.

The workers switch together when all have the same order, and regroup after a loss. They save at
the end of each epoch and on request; if none survives, training resumes from the last save.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ones.lab.faults.context import FaultContext
from ones.lab.faults.job_spec import JobSpec
from ones.lab.faults.worker import SimulatedWorker
from ones.lab.faults.worker_group import WorkerGroup
from ones.wire.messages import (
    Hung,
    Memory,
    MemoryLimit,
    Ready,
    Report,
    Speed,
    Steps,
    Switch,
    Switched,
    SwitchFailed,
)


@dataclass(slots=True)
class SimulatedJob:
    context: FaultContext
    job: str
    spec: JobSpec
    workers: dict[str, SimulatedWorker] = field(default_factory=dict)  # joined and alive, by GPU
    group: WorkerGroup | None = None
    saved: tuple[int, float] = (0, 0.0)  # epochs and samples of the last checkpoint
    epoch: int = 0  # completed
    samples: float = 0.0  # of the current epoch
    last_epoch: int = 0  # the highest that was ever completed
    completed: int = 0  # times that the script finished
    unreported_epochs: int = 0  # their reports were lost with a worker
    report_counts: Counter[str] = field(default_factory=Counter)  # reports by kind
    speed_steps: int = 0
    starts_failed: int = 0
    _version: int = 0  # events of an older version are ignored
    _failed: bool = False

    # a worker's process

    def seconds_to_join(self) -> float | None:
        if not self.spec.joins:
            return None
        if self.spec.is_slow:
            self.context.fault("slow-join", self.job)
        return self.context.rng.uniform(*self.spec.join_seconds)

    def fails_before_joining(self) -> bool:
        if self.starts_failed >= self.spec.failing_starts:
            return False
        self.starts_failed += 1
        self.context.fault("script-failure", f"{self.job} before it joins")
        return True

    def joined(self, worker: SimulatedWorker) -> None:
        self.workers[worker.name] = worker

    def count_report(self, report: Report) -> None:
        self.report_counts[type(report).__name__] += 1
        if isinstance(report, Speed):
            self.speed_steps += report.steps

    def gone(self, worker: SimulatedWorker, unreported_epochs: int) -> None:
        self.unreported_epochs += unreported_epochs
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
        group = self.group
        if group is not None and worker in group.members:
            self._broken()
            return
        plan = self._pending_with(worker.name)
        if plan is not None:
            self._later(0.5, 3.0, lambda: self._give_up(plan, f"{worker.name} was lost"))

    def cut(self, worker: SimulatedWorker) -> None:
        """Handles a worker on a node that is out of reach."""
        group = self.group
        if group is None or worker not in group.members or not worker.is_cut:
            return
        others = [m for m in group.members if not m.is_cut]
        if others:
            others[0].send(Hung(worker.name))
            self._broken()

    # orders

    def ordered(self, worker: SimulatedWorker) -> None:
        assert worker.order is not None
        plan = worker.order.plan
        if self._is_ready(plan):
            self._later(0.1, 1.5, lambda: self._switch(plan))

    def save_and_leave(self, worker: SimulatedWorker) -> None:
        if self._is_member(worker):
            self._later(0.05, 1.0, lambda: self._all_leave(save=True, done=False))
        else:
            worker.leave(done=False)

    def end(self, worker: SimulatedWorker, *, good: bool) -> None:
        if self._is_member(worker):
            self._later(0.05, 1.0, lambda: self._all_leave(save=False, done=good))
        else:
            worker.leave(done=False)

    def terminated(self, worker: SimulatedWorker) -> None:
        """Handles SIGTERM: all workers save, this one leaves, the others regroup."""
        if self._is_member(worker):
            self.saved = (self.epoch, self.samples)
            worker.leave(done=False)
            self._broken()
        else:
            worker.leave(done=False)

    def _is_member(self, worker: SimulatedWorker) -> bool:
        return self.group is not None and worker in self.group.members

    def _all_leave(self, *, save: bool, done: bool) -> None:
        group, self.group = self.group, None
        self._version += 1
        if group is None:
            return
        if save:
            self.saved = (self.epoch, self.samples)
        if done:
            self.completed += 1
        for member in group.members:
            member.leave(done=done)

    # switches

    def _pending_with(self, name: str) -> int | None:
        """The plan of a pending order that names this worker."""
        for other in self.workers.values():
            if other.order is not None and any(m.worker == name for m in other.order.members):
                return other.order.plan
        return None

    def _present(self) -> list[SimulatedWorker]:
        return list(self.group.members) if self.group is not None else []

    def _is_ready(self, plan: int) -> bool:
        """Do all present and all future members have the order of this plan?"""
        order = next((o for o in self._orders() if o.plan == plan), None)
        if order is None or (self.group is not None and self.group.plan >= plan):
            return False
        wanted = [self.workers.get(member.worker) for member in order.members]
        return all(
            w is not None and not w.is_leaving and not w.is_cut and w.order is not None
            and w.order.plan == plan
            for w in (*wanted, *self._present())
        )  # fmt: skip

    def _orders(self) -> list[Switch]:
        return [w.order for w in self.workers.values() if w.order is not None]

    def _switch(self, plan: int) -> None:
        if not self._is_ready(plan):
            return
        order = next(o for o in self._orders() if o.plan == plan)
        before = self._present()
        if not before:
            self.epoch, self.samples = self.saved
        members = [self.workers[member.worker] for member in order.members]
        self.group = WorkerGroup(plan, 0, members, max(1, order.batch))
        for worker in self.workers.values():
            if worker.order is not None and worker.order.plan == plan:
                worker.order = None
        for worker in before:
            if worker not in members:
                worker.leave(done=False)
        for worker in members:
            worker.generation = (plan, 0)
        self._announce()
        for worker in members:
            if worker not in before:
                worker.send(Ready())
        limit = self.spec.max_local_batch
        if limit and self.context.rng.random() < 0.1:
            members[0].send(MemoryLimit(limit))
        self._train()

    def _announce(self) -> None:
        """The first worker reports the switch, and the last epoch if it was not first before."""
        group = self.group
        assert group is not None
        first = group.members[0]
        names = tuple(member.name for member in group.members)
        first.send(Switched(0.1, names))
        if not first.was_first and self.epoch:
            # unacknowledged reports of an earlier first worker are stale now
            self.unreported_epochs += sum(
                w.unreported_epochs for w in self.workers.values() if w is not first
            )
            first.send(group.epoch(self.spec, self.epoch))
        for member in group.members:
            member.was_first = member is first

    def _give_up(self, plan: int, why: str) -> None:
        """Gives up an order that cannot be carried out; training continues as before."""
        ordered = [w for w in self.workers.values() if w.order is not None and w.order.plan == plan]
        for worker in ordered:
            worker.order = None
            if worker is ordered[0] or self.context.rng.random() < 0.3:
                worker.send(SwitchFailed(why, plan))

    # losses

    def _broken(self) -> None:
        """Fails the current step; the surviving workers regroup later."""
        self._version += 1
        version = self._version
        self.context.after(self.context.rng.uniform(0.5, 4.0), lambda: self._reform(version))

    def _reform(self, version: int) -> None:
        group = self.group
        if version != self._version or group is None:
            return
        alive = [m for m in group.members if m.alive and not m.is_leaving]
        members = [m for m in alive if not m.is_cut] or alive
        for left_out in alive:
            left_out.is_expelled = left_out not in members
        if not members:
            self.group = None
            return
        pending = [m.order.plan for m in members if m.order is not None]
        self.group = WorkerGroup(group.plan, group.incarnation + 1, members, group.batch)
        for member in members:
            member.generation = (group.plan, group.incarnation + 1)
            member.order = None
        if pending:
            members[0].send(SwitchFailed("a worker was lost while it was prepared", max(pending)))
        self._announce()
        self._train()

    # training

    def _train(self) -> None:
        self._version += 1
        version, group = self._version, self.group
        assert group is not None
        rate = group.samples_per_second(self.spec)
        left = (self.spec.dataset_size - self.samples) / rate
        seconds = min(max(left, 0.0), self.context.rng.uniform(3.0, 8.0))
        self.context.after(seconds, lambda: self._trained(version, seconds * rate))

    def _trained(self, version: int, samples: float) -> None:
        group = self.group
        if version != self._version or group is None:
            return
        spec, first = self.spec, group.members[0]
        if self.epoch >= spec.epochs:
            self._all_leave(save=False, done=True)
            return
        self.samples += samples
        if self.samples < spec.dataset_size - 0.5:
            steps = max(1, int(self.samples / group.batch))
            first.send(Steps(epoch=self.epoch + 1, steps=steps, samples=int(self.samples)))
            if self.context.rng.random() < 0.1:
                first.send(Memory(1 << 30, group.batch))
            self._train()
            return
        self.epoch, self.samples = self.epoch + 1, 0.0
        self.last_epoch = max(self.last_epoch, self.epoch)
        self.saved = (self.epoch, 0.0)
        first.send(group.speed(spec))
        first.send(group.epoch(spec, self.epoch))
        if self.epoch == spec.failing_epoch and not self._failed:
            self._failed = True
            self.context.fault("script-failure", f"{self.job} in epoch {self.epoch + 1}")
            victims = group.members if self.context.rng.random() < 0.5 else [first]
            for victim in list(victims):
                victim.exit(1)
            return
        if self.epoch >= spec.epochs:
            self._all_leave(save=False, done=True)
        else:
            self._train()

    def _later(self, low: float, high: float, do: object) -> None:
        assert callable(do)
        self.context.after(self.context.rng.uniform(low, high), do)
