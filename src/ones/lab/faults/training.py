"""What the workers of one job really do: the truth that the controller's state is compared with.

They switch together when all have the same order, re-form after a loss, save at the end of each
epoch and when they are told to, and begin again from there when none survives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ones.lab.faults.spec import JobSpec
from ones.lab.faults.worker import SimulatedWorker
from ones.lab.faults.world import World
from ones.wire.messages import (
    Epoch,
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
class Formation:
    """Workers that train together."""

    plan: int
    incarnation: int
    members: list[SimulatedWorker]
    batch: int


@dataclass(slots=True)
class Training:
    world: World
    job: str
    spec: JobSpec
    workers: dict[str, SimulatedWorker] = field(default_factory=dict)  # joined and alive, by GPU
    formation: Formation | None = None
    saved: tuple[int, float] = (0, 0.0)  # epochs and samples of the last checkpoint
    epoch: int = 0  # completed
    samples: float = 0.0  # of the epoch under way
    farthest: int = 0  # epochs that were ever completed
    completed: int = 0  # times that the script came to its end
    unsaid: int = 0  # epochs whose report died with a worker
    spoken: Counter[str] = field(default_factory=Counter)  # reports by kind
    speed_steps: int = 0
    starts_failed: int = 0
    _version: int = 0  # of what trains: later events of an older one are void
    _failed: bool = False

    # a worker's process

    def seconds_to_join(self) -> float | None:
        if not self.spec.joins:
            return None
        if self.spec.is_slow:
            self.world.fault("slow-join", self.job)
        return self.world.dice.uniform(*self.spec.join_seconds)

    def fails_before_joining(self) -> bool:
        if self.starts_failed >= self.spec.failing_starts:
            return False
        self.starts_failed += 1
        self.world.fault("script-failure", f"{self.job} before it joins")
        return True

    def joined(self, worker: SimulatedWorker) -> None:
        self.workers[worker.name] = worker

    def said(self, report: Report) -> None:
        self.spoken[type(report).__name__] += 1
        if isinstance(report, Speed):
            self.speed_steps += report.steps

    def gone(self, worker: SimulatedWorker, unsaid: int) -> None:
        self.unsaid += unsaid
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
        formation = self.formation
        if formation is not None and worker in formation.members:
            self._broken()
            return
        plan = self._pending_with(worker.name)
        if plan is not None:
            self._later(0.5, 3.0, lambda: self._give_up(plan, f"{worker.name} was lost"))

    def cut(self, worker: SimulatedWorker) -> None:
        """Its node went out of reach, or is back."""
        formation = self.formation
        if formation is None or worker not in formation.members or not worker.is_cut:
            return
        others = [m for m in formation.members if not m.is_cut]
        if others:
            others[0].say(Hung(worker.name))
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
        """SIGTERM: all save, that one leaves, the others re-form."""
        if self._is_member(worker):
            self.saved = (self.epoch, self.samples)
            worker.leave(done=False)
            self._broken()
        else:
            worker.leave(done=False)

    def _is_member(self, worker: SimulatedWorker) -> bool:
        return self.formation is not None and worker in self.formation.members

    def _all_leave(self, *, save: bool, done: bool) -> None:
        formation, self.formation = self.formation, None
        self._version += 1
        if formation is None:
            return
        if save:
            self.saved = (self.epoch, self.samples)
        if done:
            self.completed += 1
        for member in formation.members:
            member.leave(done=done)

    # switches

    def _pending_with(self, name: str) -> int | None:
        """The plan of an order that names this worker and was not carried out."""
        for other in self.workers.values():
            if other.order is not None and any(m.worker == name for m in other.order.members):
                return other.order.plan
        return None

    def _present(self) -> list[SimulatedWorker]:
        return list(self.formation.members) if self.formation is not None else []

    def _is_ready(self, plan: int) -> bool:
        """Do all that are and all that will be know of it?"""
        order = next((o for o in self._orders() if o.plan == plan), None)
        if order is None or (self.formation is not None and self.formation.plan >= plan):
            return False
        wanted = [self.workers.get(member.worker) for member in order.members]
        return all(
            w is not None and not w.parted and not w.is_cut and w.order is not None
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
        self.formation = Formation(plan, 0, members, max(1, order.batch))
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
                worker.say(Ready())
        limit = self.spec.max_local_batch
        if limit and self.world.dice.random() < 0.1:
            members[0].say(MemoryLimit(limit))
        self._train()

    def _announce(self) -> None:
        """The first worker says that all train, and the last epoch if another one should have."""
        formation = self.formation
        assert formation is not None
        first = formation.members[0]
        names = tuple(member.name for member in formation.members)
        first.say(Switched(0.1, names, {}, 0))
        if not first.was_first and self.epoch:
            # what another first worker has not got through is stale now
            self.unsaid += sum(w.unsaid for w in self.workers.values() if w is not first)
            self._tell_epoch(first)
        for member in formation.members:
            member.was_first = member is first

    def _give_up(self, plan: int, why: str) -> None:
        """An order cannot come together: training goes on as before."""
        told = [w for w in self.workers.values() if w.order is not None and w.order.plan == plan]
        for worker in told:
            worker.order = None
            if worker is told[0] or self.world.dice.random() < 0.3:
                worker.say(SwitchFailed(why, plan))

    # losses

    def _broken(self) -> None:
        """The step under way fails; those who live find one another."""
        self._version += 1
        version = self._version
        self.world.after(self.world.dice.uniform(0.5, 4.0), lambda: self._reform(version))

    def _reform(self, version: int) -> None:
        formation = self.formation
        if version != self._version or formation is None:
            return
        alive = [m for m in formation.members if m.alive and not m.parted]
        members = [m for m in alive if not m.is_cut] or alive
        for left_out in alive:
            left_out.is_expelled = left_out not in members
        if not members:
            self.formation = None
            return
        pending = [m.order.plan for m in members if m.order is not None]
        self.formation = Formation(
            formation.plan, formation.incarnation + 1, members, formation.batch
        )
        for member in members:
            member.generation = (formation.plan, formation.incarnation + 1)
            member.order = None
        if pending:
            members[0].say(SwitchFailed("a worker was lost while it was prepared", max(pending)))
        self._announce()
        self._train()

    # training

    def _train(self) -> None:
        self._version += 1
        version, formation = self._version, self.formation
        assert formation is not None
        rate = self.spec.samples_per_second * len(formation.members) ** 0.8
        left = (self.spec.dataset_size - self.samples) / rate
        seconds = min(max(left, 0.0), self.world.dice.uniform(3.0, 8.0))
        self.world.after(seconds, lambda: self._trained(version, seconds * rate))

    def _trained(self, version: int, samples: float) -> None:
        formation = self.formation
        if version != self._version or formation is None:
            return
        spec, first = self.spec, formation.members[0]
        if self.epoch >= spec.epochs:
            self._all_leave(save=False, done=True)
            return
        self.samples += samples
        if self.samples < spec.dataset_size - 0.5:
            steps = max(1, int(self.samples / formation.batch))
            first.say(Steps(epoch=self.epoch + 1, steps=steps, samples=int(self.samples)))
            if self.world.dice.random() < 0.1:
                first.say(Memory(1 << 30, formation.batch))
            self._train()
            return
        self.epoch, self.samples = self.epoch + 1, 0.0
        self.farthest = max(self.farthest, self.epoch)
        self.saved = (self.epoch, 0.0)
        self._tell_speed(first)
        self._tell_epoch(first)
        if self.epoch == spec.failing_epoch and not self._failed:
            self._failed = True
            self.world.fault("script-failure", f"{self.job} in epoch {self.epoch + 1}")
            victims = formation.members if self.world.dice.random() < 0.5 else [first]
            for victim in list(victims):
                victim.exit(1)
            return
        if self.epoch >= spec.epochs:
            self._all_leave(save=False, done=True)
        else:
            self._train()

    def _tell_speed(self, first: SimulatedWorker) -> None:
        formation = self.formation
        assert formation is not None
        steps = max(1, self.spec.dataset_size // formation.batch)
        rate = self.spec.samples_per_second * len(formation.members) ** 0.8
        first.say(
            Speed(
                gpus=len(formation.members),
                nodes=len({member.node for member in formation.members}),
                batch=formation.batch,
                micro_steps=1,
                step_seconds=formation.batch / rate,
                steps=steps,
            )
        )

    def _tell_epoch(self, first: SimulatedWorker) -> None:
        formation = self.formation
        assert formation is not None
        first.say(
            Epoch(
                epoch=self.epoch,
                steps=max(1, self.spec.dataset_size // formation.batch),
                samples=self.spec.dataset_size,
                loss=2.0 / (1 + self.epoch),
                accuracy=1.0 - 0.8**self.epoch,
                first_loss=2.3,
                step_seconds=0.1,
                planned_epochs=self.spec.epochs,
            )
        )

    def _later(self, low: float, high: float, do: object) -> None:
        assert callable(do)
        self.world.after(self.world.dice.uniform(low, high), do)
