"""A worker among others: how the set of workers changes between two steps.

An order to switch arrives while training goes on. A thread connects the next group; once
it is connected here, this worker says so in the notices of every step. When all say so, all
have learned it from the same reduction, and switch after that step: leavers leave, newcomers
get the state, the rest goes on. Nobody waits for anybody who is not there.

When a collective fails, a worker is gone. Those who live say so on the roll call, learn who
goes on, connect, and take the state of the one that got furthest. No controller is needed.
`docs/decisions/0006-elastic-protocol.md` has the whole protocol.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from ones.train.agent import Agent
from ones.train.buckets import Notice
from ones.train.formation import Formation
from ones.train.group import Group, GroupLostError
from ones.train.meeting import Meeting
from ones.train.replica import Replica, share_buffers
from ones.train.roll_call import Reform
from ones.train.sampler import Division
from ones.train.saving import Saver
from ones.train.upcoming import Next, Upcoming
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import (
    CheckpointAndLeave,
    End,
    Hung,
    Leaving,
    Order,
    Ready,
    Report,
    StoreStarted,
    Switch,
    Switched,
    SwitchFailed,
    Withdraw,
)

_AT_ONCE = 1000.0  # in the notice END: not only the loop ends, the process does
_GOOD_ENDS = ("converged", "finished")
_DROP_AFTER = 20  # steps: letting go of an old group's connections takes milliseconds
_FLUSH_SECONDS = 10.0
TERMINATED = 128 + 15


class Crew:
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
        self.environment = environment
        self.me = environment.worker
        self.replica = replica
        self.limit, self._minimum = limit, minimum
        self._device = device
        self._size = dataset_size
        self.formation: Formation | None = None
        self.group: Group | None = None
        self.meeting = Meeting(
            environment,
            on_started=lambda address: self.say(StoreStarted(str(address))),
            on_hung=lambda worker: self.say(Hung(worker)),
        )
        self.agent = Agent(
            environment,
            on_order=self._on_order,
            on_fenced=self._on_fenced,
            on_store=self.meeting.told,
        )
        self._upcoming = Upcoming(
            self.me,
            self.meeting,
            device,
            on_failed=lambda formation, why: self.say(SwitchFailed(why, formation.plan)),
        )
        self._saver = Saver(environment.checkpoints, replica)
        self._end: End | None = None
        self._save_and_leave = False
        self._terminated = False
        self._agreed = self._broken = False
        self._told_to_save = self._told_to_end = False
        self._somebody_leaves = False
        self.over = False  # the loop is to end
        self.parted = False
        self._step_ended = time.perf_counter()
        self._old: list[tuple[int, Group | None]] = []  # groups to let go of, and when
        self._exact = _exact(os.environ.get("ONES_EXACT", ""))
        self.on_switched: list[Callable[[bool], None]] = []  # was it the first worker before?
        self._was_first = False

    # what the loop asks

    @property
    def rank(self) -> int:
        return 0 if self.formation is None else self.formation.workers.index(self.me)

    @property
    def division(self) -> Division:
        assert self.formation is not None
        return self.formation.division(self.me, self.limit, self._minimum)

    def say(self, report: Report) -> None:
        self.agent.say(report)

    @property
    def restless(self) -> bool:
        """Is there anything to settle before the next step?"""
        return (
            self._broken
            or self._agreed
            or self._told_to_save
            or self._told_to_end
            or self._somebody_leaves
            or self._is_due
        )

    @property
    def _is_due(self) -> bool:
        """In a run by an exact schedule: no step beyond the one at which a plan is due."""
        if not self._exact or self.formation is None:
            return False
        step = self.replica.progress.step
        due = max((plan for plan, at in self._exact.items() if at <= step), default=0)
        return self.formation.plan < due

    @property
    def _mark(self) -> int:
        """How far this replica has come, in samples; -1: it has nothing to offer."""
        if not self.replica.has_state:
            return -1
        progress = self.replica.progress
        return progress.epoch * (self._size + 1) + progress.offset

    # entering

    def wait_for_place(self) -> None:
        """A newcomer's first order; it stays on the CPU until its group is connected."""
        upcoming = self._upcoming
        with upcoming.changed:
            while upcoming.plan is None:
                if self._end is not None or self._save_and_leave or self._terminated:
                    break
                upcoming.changed.wait(1.0)
            else:
                return
        self.leave()

    def take_place(self) -> None:
        """The state of the job, from those who train, or from its last checkpoint."""
        while True:
            nxt = self._upcoming.claim()
            if nxt is None:
                self.wait_for_place()
                continue
            started = time.perf_counter()
            self._adopt(nxt)
            try:
                if self.rank == 0:
                    self._saver.load()
                if self.group is not None:
                    self._equal()
            except GroupLostError:
                self._broken = True
            if self._broken:
                if not self._reform():
                    continue
            else:
                self.replica.has_state = True
                self._announce(time.perf_counter() - started, {})
            self._seed()
            self.say(Ready())
            return

    def _seed(self) -> None:
        """Dropout must differ between workers."""
        if self.rank:
            torch.manual_seed(
                hash((self.replica.progress.seed, self.replica.progress.step, self.rank))
            )

    # between two steps

    def notices(self) -> dict[Notice, float | Tensor]:
        plan = self._upcoming.plan
        ready = plan is not None
        if plan is not None and self._exact:
            ready = self._exact.get(plan, 0) <= self.replica.progress.step + 1
        end = 0.0
        if self._end is not None:
            end = 1.0 if self._end.reason in _GOOD_ENDS else _AT_ONCE
        return {
            Notice.NOT_READY: 0.0 if ready else 1.0,
            Notice.CHECKPOINT: float(self._save_and_leave),
            Notice.END: end,
            Notice.LEAVING: float(self._terminated),
        }

    def heard(self, sums: list[float]) -> None:
        """What all said in a step that is now complete everywhere, or will be."""
        self._agreed = sums[Notice.NOT_READY] == 0.0
        self._told_to_save = sums[Notice.CHECKPOINT] > 0.0
        self._somebody_leaves = sums[Notice.LEAVING] > 0.0
        if sums[Notice.END] > 0.0:
            self.over = True
            self._told_to_end = sums[Notice.END] >= _AT_ONCE

    def stepped(self) -> None:
        """The optimizer has made its step."""
        self._step_ended = time.perf_counter()
        if self._old and self._old[0][0] <= self.replica.progress.step:
            self._old.pop(0)
        if self.rank == 0 and self.formation is not None:
            self._saver.sometimes(self.formation.generation)

    def lost(self) -> None:
        """The step failed: nothing was updated."""
        self._broken = True

    def settle(self) -> bool:
        """Everything that may happen between two steps. True: division or state changed."""
        changed = False
        while True:
            try:
                if self._broken:
                    self._reform()
                    changed = True
                if self._told_to_end or self._told_to_save or self._somebody_leaves:
                    self._see_off()
                if self._agreed or (self._is_due and self._hold()):
                    self._agreed = False
                    changed = self._switch() or changed
            except GroupLostError:
                self._broken = True
            else:
                return changed

    def _see_off(self) -> None:
        """Somebody leaves, or all do: first save, where there is something to save for."""
        if not self._told_to_end:
            self._save()
        somebody, self._somebody_leaves = self._somebody_leaves, False
        if self.group is not None:
            self.group.farewell(range(self.group.size))
        if self._told_to_end or self._told_to_save:
            self.leave()
        if somebody and self._terminated:
            self.leave(TERMINATED)

    def _hold(self) -> bool:
        """Wait for the plan that is due; its members do so after the same step."""
        upcoming = self._upcoming
        with upcoming.changed:
            while upcoming.plan is None:
                if self._end is not None or self._terminated:
                    return False
                upcoming.changed.wait(1.0)
        self._step_ended = time.perf_counter()  # the wait was wanted and is no pause
        return True

    def end_epoch(self, *, last: bool) -> bool:
        """The first worker's buffers everywhere. False: a worker was lost meanwhile."""
        if self.group is not None:
            try:
                share_buffers(self.group, self.replica.model)
                if last:  # no more collectives: each may end when it likes
                    self.group.farewell(range(self.group.size))
            except GroupLostError:
                self._broken = True
                return False
        return True

    def _switch(self) -> bool:
        nxt, before = self._upcoming.claim(), self.formation
        assert before is not None
        began = time.perf_counter()
        plan = -1 if nxt is None else nxt.formation.plan
        try:
            agreed = self.group is None or self.group.agree(plan)
        except GroupLostError:
            self._upcoming.unclaim(nxt)
            raise
        if not agreed or nxt is None:
            self._upcoming.unclaim(nxt)
            return False  # one of us has had a newer order since
        agreed_at = time.perf_counter()
        leavers = [r for r, w in enumerate(before.workers) if w not in nxt.formation]
        old = self.group
        self._adopt(nxt)
        if self.me not in nxt.formation:
            if old is not None:
                with contextlib.suppress(GroupLostError):
                    old.farewell(leavers)
            self.leave()
        if old is not None and leavers:
            old.farewell(leavers)
        if self.group is not None:
            if set(nxt.formation.workers) - set(before.workers):
                self._equal()
            else:
                share_buffers(self.group, self.replica.model)
        ended = time.perf_counter()
        parts = {"wait": began - self._step_ended, "agree": agreed_at - began}
        parts["state"] = ended - agreed_at
        parts["connect_in_background"] = nxt.connect_seconds
        self._announce(ended - self._step_ended, parts)
        return True

    def _adopt(self, nxt: Next) -> None:
        before = self.formation
        same = before is not None and before.workers == nxt.formation.workers
        if not (same and nxt.group is None):
            self._old.append((self.replica.progress.step + _DROP_AFTER, self.group))
            self.group = nxt.group
        self._now_in_force(nxt.formation)

    def _now_in_force(self, formation: Formation) -> None:
        self.formation = formation
        self.agent.generation = formation.generation
        self._upcoming.now_in_force(formation)
        self.meeting.joins(formation.generation)

    def _equal(self) -> None:
        assert self.group is not None
        self.replica.share(self.group, self._mark)
        share_buffers(self.group, self.replica.model)

    def _announce(self, pause: float, parts: dict[str, float]) -> None:
        formation = self.formation
        assert formation is not None
        progress = self.replica.progress
        self.replica.rate.batch_is(formation.batch, progress.step)
        if progress.limit is not None:
            self.limit = min(self.limit or progress.limit, progress.limit)
        if self.rank == 0:
            self.say(Switched(pause, formation.workers, parts, progress.step))
        for call in self.on_switched:
            call(self._was_first)
        self._was_first = self.rank == 0

    # after a loss

    def _reform(self) -> bool:
        """False: a newcomer that has nothing to lose was called elsewhere."""
        self._broken = self._agreed = False
        pending = self._upcoming.drop()
        self._close_group()
        gc.collect()  # whatever still refers to the group keeps others waiting
        while True:
            formation = self.formation
            assert formation is not None
            self.meeting.expect(formation.workers)
            calls = self.meeting.calls(may_start=self.meeting.place(formation))
            answer = calls.reform(
                formation.plan, formation.incarnation, formation.workers, self._mark
            )
            if calls.expelled:
                self._exit_quietly("the others went on without it")
            if self._end is not None and self._end.reason not in _GOOD_ENDS:
                self.leave()
            if answer is None:  # the store died and another is on its way, or an order came
                if self._upcoming.is_there and not self.replica.has_state:
                    calls.unfail()
                    return False
                continue
            if self._reformed(answer):
                break
        assert self.formation is not None
        if pending is not None and pending.plan > self.formation.plan:
            self.say(SwitchFailed("a worker was lost while it was prepared", pending.plan))
        pause = time.perf_counter() - self._step_ended
        self._announce(pause, {"reform": pause})
        return True

    def _reformed(self, answer: Reform) -> bool:
        """False: one more was lost on the way."""
        present = self.formation
        assert present is not None
        base = present if present.plan == answer.plan else self._upcoming.known(answer.plan)
        if base is None or self.me not in answer.members:
            self.leave()  # the newest plan has no place for this worker
        if answer.limit is not None:
            self.limit = min(self.limit or answer.limit, answer.limit)
        formation = base.after_loss(answer.members, answer.incarnation)
        self._now_in_force(formation)
        if self.rank == 0:
            self._saver.load()  # nobody who has trained may be left
        try:
            if len(answer.members) > 1:
                self.group = self.meeting.connect(formation, self._device)
                self._equal()
        except GroupLostError:
            self._close_group()
            return False
        self.replica.has_state = True
        return True

    def _close_group(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.close()

    # saving and leaving

    def _save(self) -> None:
        if self.rank == 0 and self.formation is not None:
            self._saver.now(self.formation.generation)

    def limit_is(self, samples: int) -> None:
        """Memory ran out here. Others are told, and if all die of it, those who come next."""
        self.replica.progress.limit = samples
        self.meeting.limit_is(samples)
        self._save()

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
        self.parted = True
        self._saver.wait()
        self._upcoming.drop()
        self._close_group()
        self._old.clear()
        self.meeting.leave()
        self.agent.flush(_FLUSH_SECONDS)
        self.agent.stop()

    def _exit_quietly(self, why: str) -> NoReturn:
        print(f"ones: {self.me} leaves: {why}", file=sys.stderr, flush=True)
        os._exit(0)

    def terminate(self, *_: object) -> None:
        """SIGTERM."""
        if self.formation is None or not self.replica.has_state:
            sys.exit(TERMINATED)
        self._terminated = True

    # in the agent's threads

    def _on_fenced(self) -> None:
        self._exit_quietly("it has no place in its job any more")

    def _on_order(self, order: Order) -> None:
        if isinstance(order, Switch):
            self._upcoming.prepare(Formation.ordered(order))
        elif isinstance(order, Withdraw):
            self._upcoming.withdraw(order.withdrawn)
        elif isinstance(order, CheckpointAndLeave):
            self._save_and_leave = True
        elif isinstance(order, End):
            self._end = order
        with self._upcoming.changed:
            self._upcoming.changed.notify_all()
        self.meeting.interrupt()


def _exact(text: str) -> dict[int, int]:
    """`2:50,3:120`: from step 50 on by plan 2, from 120 on by plan 3."""
    pairs = (part.split(":") for part in text.split(",") if part)
    return {int(plan): int(step) for plan, step in pairs}
