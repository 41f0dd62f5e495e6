"""A worker's place in its job: with whom it works, what it was told, and how it goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import torch

from ones.train import logs
from ones.train.agent import Agent
from ones.train.formation import Formation
from ones.train.group import Group
from ones.train.meeting import Meeting
from ones.train.replica import Replica, share_buffers
from ones.train.sampler import Division
from ones.train.saving import Saver
from ones.train.upcoming import Next, Upcoming
from ones.wire.bounds import as_text
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import (
    CheckpointAndLeave,
    End,
    Hung,
    Leaving,
    Order,
    Report,
    StoreStarted,
    Switch,
    Switched,
    SwitchFailed,
    Withdraw,
)

TERMINATED = 128 + 15
LEFT_OUT = 75  # of a worker without a place in its job: 0 would say that the script is done
_GOOD_ENDS = ("converged", "finished")
_DROP_AFTER = 20  # steps: letting go of an old group's connections takes milliseconds
_FLUSH_SECONDS = 10.0

_log = logs.logger(__name__)


class Place:
    def __init__(
        self,
        environment: WorkerEnvironment,
        replica: Replica,
        *,
        device: torch.device,
        dataset_size: int,
        limit: int | None,
        minimum: int,
    ) -> None:
        self.me = environment.worker
        self.replica = replica
        self.device = device
        self.limit, self._minimum = limit, minimum
        self._size = dataset_size
        self.is_entering = False  # the others may have gone on, but it has not all of the state
        self.has_entered = False
        self.formation: Formation | None = None
        self.group: Group | None = None
        self._old: list[tuple[int, Group | None]] = []  # groups to let go of, and when
        self.meeting = Meeting(
            environment,
            on_started=lambda address: self.say(StoreStarted(str(address))),
            on_hung=self._on_hung,
            on_silence=self._on_silence,
        )
        self.agent = Agent(
            environment,
            on_order=self._on_order,
            on_fenced=lambda: self.exit_quietly("it has no place in its job any more"),
            on_store=self.meeting.told,
        )
        self.upcoming = Upcoming(
            self.me,
            self.meeting,
            device,
            offer=self._offer,
            on_failed=lambda formation, why: self.say(SwitchFailed(as_text(why), formation.plan)),
        )
        self.saver = Saver(environment.checkpoints, replica)
        # what it was told
        self.end: End | None = None
        self.must_save_and_leave = False
        self.is_terminated = False
        self.has_parted = False
        self.on_switched: list[Callable[[bool], None]] = []  # was it the first worker before?
        self._was_first = False

    @property
    def rank(self) -> int:
        return 0 if self.formation is None else self.formation.workers.index(self.me)

    @property
    def division(self) -> Division:
        assert self.formation is not None
        return self.formation.division(self.me, self.limit, self._minimum)

    @property
    def mark(self) -> int:
        """How far this replica has come, in samples; -1: it has nothing to offer."""
        if not self.replica.has_state:
            return -1
        progress = self.replica.progress
        return progress.epoch * (self._size + 1) + progress.offset

    @property
    def ends_well(self) -> bool:
        return self.end is not None and self.end.reason in _GOOD_ENDS

    @property
    def ends_at_once(self) -> bool:
        return self.end is not None and not self.ends_well

    @property
    def must_go(self) -> bool:
        """Whoever has nothing to lose does so at once, lest it begin anew what others ended."""
        return self.end is not None or self.must_save_and_leave or self.is_terminated

    def entering(self, now: bool) -> None:
        with self.upcoming.changed:
            self.is_entering = now
            self.upcoming.changed.notify_all()

    def _offer(self) -> int:
        """To the members of the next formation: nothing, its state, or to feed others with it."""
        with self.upcoming.changed:
            self.upcoming.changed.wait_for(lambda: not self.is_entering)
        if not self.has_entered:
            return 0
        return 2 if self.replica.is_repeatable else 1

    def say(self, report: Report) -> None:
        self.agent.say(report)

    # with others

    def wait_for_order(self) -> None:
        """A newcomer's first order; it stays on the CPU until its group is connected."""
        with self.upcoming.changed:
            while self.upcoming.plan is None:
                if self.must_go:
                    break
                self.upcoming.changed.wait(1.0)
            else:
                return
        self.leave()

    def adopt(self, nxt: Next) -> None:
        before = self.formation
        same = before is not None and before.workers == nxt.formation.workers
        if not (same and nxt.group is None):
            self._old.append((self.replica.progress.step + _DROP_AFTER, self.group))
            self.group = nxt.group
        self.now_in_force(nxt.formation)

    def now_in_force(self, formation: Formation) -> None:
        self.formation = formation
        self.agent.generation = formation.generation
        self.upcoming.now_in_force(formation)
        self.meeting.joins(formation.generation)

    def become_equal(self) -> None:
        """All members to the one that got furthest."""
        assert self.group is not None
        self.replica.share(self.group, self.mark)
        share_buffers(self.group, self.replica.model)

    def announce(self, pause: float, parts: dict[str, float]) -> None:
        """The present formation has the state and goes on."""
        formation, progress = self.formation, self.replica.progress
        assert formation is not None
        self.replica.rate.batch_is(formation.batch, progress.step)
        if progress.limit is not None:
            self.no_more_than(progress.limit)
        if self.rank == 0:
            self.say(Switched(pause, formation.workers, parts, progress.step))
        for call in self.on_switched:
            call(self._was_first)
        self._was_first = self.rank == 0

    def no_more_than(self, limit: int) -> None:
        """Samples at once: a worker ran out of memory with more."""
        self.limit = min(self.limit or limit, limit)

    def stepped(self) -> None:
        if self._old and self._old[0][0] <= self.replica.progress.step:
            self._old.pop(0)
        if self.rank == 0 and self.formation is not None:
            self.saver.sometimes(self.formation.generation)

    def close_group(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.close()

    # saving and leaving

    def save(self) -> None:
        if self.rank == 0 and self.formation is not None:
            self.saver.now(self.formation.generation)

    def limit_is(self, samples: int) -> None:
        """Memory ran out here. Others are told, and if all die of it, those who come next."""
        self.replica.progress.limit = samples
        self.meeting.limit_is(samples)
        self.save()

    def leave(self, code: int = 0) -> NoReturn:
        """Out of the script, from wherever it is."""
        self.part(done=False)
        raise SystemExit(code)

    def part(self, *, done: bool) -> None:
        """Say goodbye; the process ends soon."""
        self.say(Leaving(done))
        self.fall()

    def fall(self) -> None:
        """Leave without a word that all is well: the script has failed."""
        self.has_parted = True
        self.saver.wait()
        self.upcoming.drop()
        self.close_group()
        self._old.clear()
        self.meeting.leave()
        self.agent.end(_FLUSH_SECONDS)

    def exit_quietly(self, why: str) -> NoReturn:
        _log.warning("%s leaves: %s", self.me, why)
        os._exit(LEFT_OUT)

    def terminate(self, *_: object) -> None:
        """SIGTERM."""
        self.is_terminated = True  # first: an exit that is raised in a destructor is swallowed
        if self.formation is None or not self.replica.has_state:
            sys.exit(TERMINATED)

    # in the threads of agent and roll call

    def _on_hung(self, worker: str) -> None:
        """Killed, it ends its connections. On a node that is cut off it does not."""
        self.say(Hung(worker))
        formation, group = self.formation, self.group
        if group is not None and formation is not None and worker in formation:
            group.sever()

    def _on_silence(self) -> None:
        """The node of the store cannot be reached, nor what is there of this job."""
        group = self.group
        if group is not None:
            group.sever()

    def _on_order(self, order: Order) -> None:
        if isinstance(order, Switch):
            self.upcoming.prepare(Formation.ordered(order))
        elif isinstance(order, Withdraw):
            self.upcoming.withdraw(order.withdrawn)
        elif isinstance(order, CheckpointAndLeave):
            self.must_save_and_leave = True
        elif isinstance(order, End):
            self.end = order
        with self.upcoming.changed:
            self.upcoming.changed.notify_all()
        self.meeting.interrupt()
