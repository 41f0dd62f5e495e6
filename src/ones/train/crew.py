"""A worker among others: how the set of workers changes between two steps.

An order to switch arrives while training goes on. A thread connects the next group, and those
who stay feed the newcomers. Once both are done here, this worker says so in the notices of every
step, with the number of the plan. When all say the same, all have learned it from the same
reduction, and switch after that step: leavers leave, newcomers are equal already, the rest
goes on. Nobody waits for anybody who is not there.
`docs/decisions/0006-elastic-protocol.md` has the whole protocol; `recovery` what follows a loss.
"""

from __future__ import annotations

import contextlib
import os
import time

import torch
from torch import Tensor

from ones.train.buckets import Buckets, Notice
from ones.train.group import Alone, Group, GroupLostError
from ones.train.handover import Handover
from ones.train.place import TERMINATED, Place
from ones.train.recovery import reform
from ones.train.replica import share_buffers
from ones.train.upcoming import Next
from ones.wire.messages import Ready

_AT_ONCE = 1000.0  # in the notice END: not only the loop ends, the process does
_PLANS = 64  # notices tell plans apart by their rest of this: sums stay exact in float32


class Crew:
    def __init__(self, place: Place, buckets: Buckets) -> None:
        self.place, self.buckets = place, buckets
        self._replica, self._upcoming = place.replica, place.upcoming
        self._claimed: Next | None = None  # said to be ready in the notices of this step
        self._agreed = self._broken = self._unequal = False
        self._told_to_save = self._told_to_end = False
        self._somebody_leaves = False
        self.over = False  # the loop is to end
        self.handover = Handover(place.replica, buckets)
        self._step_ended = time.perf_counter()
        self._exact = _exact(os.environ.get("ONES_EXACT", ""))

    # what the loop asks

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def group(self) -> Group | None:
        return self.place.group

    @property
    def sums_over(self) -> Group | None:
        """With whom gradients are added up. One that works alone and feeds needs them, too,
        where they can be sent from."""
        if self.place.group is None and self.handover.is_going_on:
            return Alone()
        return self.place.group

    @property
    def restless(self) -> bool:
        """Is there anything to settle before the next step?"""
        return (
            self._broken
            or self._agreed
            or self._unequal
            or self._told_to_save
            or self._told_to_end
            or self._somebody_leaves
            or self._is_due
        )

    @property
    def _is_due(self) -> bool:
        """In a run by an exact schedule: no step beyond the one at which a plan is due."""
        formation = self.place.formation
        if not self._exact or formation is None:
            return False
        step = self._replica.progress.step
        due = max((plan for plan, at in self._exact.items() if at <= step), default=0)
        return formation.plan < due

    # entering

    def take_place(self) -> None:
        """The state of the job, from those who train, or from its last checkpoint."""
        place = self.place
        while True:
            nxt = self._upcoming.claim()
            if nxt is None:
                place.wait_for_order()
                continue
            started = time.perf_counter()
            place.entering(True)
            place.adopt(nxt)
            try:
                if place.rank == 0:
                    place.saver.load()
                if nxt.is_fed and place.group is not None:
                    self.handover.be_fed(nxt, place.group)
                elif place.group is not None:
                    place.become_equal()
            except GroupLostError:
                self._broken = True
            if self._broken:
                if not self._reform():
                    place.entering(False)
                    continue
            else:
                self._replica.has_state = not nxt.is_fed
                place.announce(time.perf_counter() - started, {})
            self._seed()
            place.has_entered = True
            place.entering(False)
            place.say(Ready())
            return

    def _seed(self) -> None:
        """Dropout must differ between workers."""
        if self.rank:
            progress = self._replica.progress
            torch.manual_seed(hash((progress.seed, progress.step, self.rank)))

    # in a step

    def notices(self) -> dict[Notice, float | Tensor]:
        """What this worker has to say; what it says it is ready for, no order takes away."""
        place = self.place
        values: dict[Notice, float | Tensor] = {}
        if self._is_ready():
            self._claimed = self._upcoming.claim()
        if self._claimed is None:
            values[Notice.NOT_READY] = 1.0
        else:
            plan = self._claimed.formation.plan % _PLANS
            values[Notice.PLAN], values[Notice.PLAN_SQUARED] = float(plan), float(plan * plan)
        if place.must_save_and_leave:
            values[Notice.CHECKPOINT] = 1.0
        if place.end is not None:
            values[Notice.END] = 1.0 if place.ends_well else _AT_ONCE
        if place.is_terminated:
            values[Notice.LEAVING] = 1.0
        if self.handover.is_unequal():
            values[Notice.UNEQUAL] = 1.0
        return values

    def _is_ready(self) -> bool:
        nxt = self._upcoming.ready
        if nxt is None:
            return False
        if not self.handover.is_done_for(nxt):
            return False
        return self._exact.get(nxt.formation.plan, 0) <= self._replica.progress.step + 1

    def heard(self, sums: list[float]) -> bool:
        """What all said in a step that is now complete everywhere, or will be. False: it does
        not count, as a newcomer was not equal to the others."""
        size = 1 if self.group is None else self.group.size
        claimed = self._claimed
        if claimed is not None:
            plan = claimed.formation.plan % _PLANS
            # all numbers are equal if their mean is mine and their spread is zero
            self._agreed = (
                sums[Notice.NOT_READY] == 0.0
                and sums[Notice.PLAN] == size * plan
                and sums[Notice.PLAN_SQUARED] == size * plan * plan
            )
            if not self._agreed:
                self._give_back()
        self._told_to_save = sums[Notice.CHECKPOINT] > 0.0
        self._somebody_leaves = sums[Notice.LEAVING] > 0.0
        if sums[Notice.END] > 0.0:
            self.over = True
            self._told_to_end = sums[Notice.END] >= _AT_ONCE
        self._unequal = sums[Notice.UNEQUAL] > 0.0
        return not self._unequal

    def stepped(self) -> None:
        """The optimizer has made its step."""
        self._step_ended = time.perf_counter()
        self.place.stepped()
        if not self._agreed:
            self.handover.go_on(self._upcoming)

    def lost(self) -> None:
        """The step failed: nothing was updated."""
        self._broken = True
        self._give_back()

    def _give_back(self) -> None:
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            self._upcoming.unclaim(claimed)

    # between two steps

    def settle(self) -> bool:
        """Everything that may happen between two steps. True: division or state changed."""
        changed = False
        while True:
            try:
                if self._broken:
                    self._reform()
                    changed = True
                if self._unequal:
                    self._unequal = False
                    self._replica.changes_by_itself = True
                    self.place.become_equal()
                    changed = True
                if self._told_to_end or self._told_to_save or self._somebody_leaves:
                    self._see_off()
                if self._agreed or (self._is_due and self._hold()):
                    changed = self._switch() or changed
            except GroupLostError:
                self._broken = True
            else:
                return changed

    def _reform(self) -> bool:
        self._broken = self._agreed = self._unequal = False
        self._give_back()
        self.handover.forget()
        return reform(self.place, self._step_ended)

    def _see_off(self) -> None:
        """Somebody leaves, or all do: first save, where there is something to save for."""
        if not self._told_to_end:
            self.place.save()
        somebody, self._somebody_leaves = self._somebody_leaves, False
        if self.group is not None:
            self.group.farewell(range(self.group.size))
        if self._told_to_end or self._told_to_save:
            self.place.leave()
        if somebody and self.place.is_terminated:
            self.place.leave(TERMINATED)

    def _hold(self) -> bool:
        """Wait for the plan that is due; its members do so after the same step."""
        place, upcoming = self.place, self._upcoming
        with upcoming.changed:
            while upcoming.plan is None:
                if place.end is not None or place.is_terminated:
                    return False
                upcoming.changed.wait(1.0)
        self.handover.go_on(upcoming)
        self.handover.wait()
        self.handover.go_on(upcoming)  # gives up the plan if that went wrong
        self._step_ended = time.perf_counter()  # the wait was wanted and is no pause
        self._claimed = upcoming.claim()
        plan = -1 if self._claimed is None else self._claimed.formation.plan
        try:
            self._agreed = self.group is None or self.group.agree(plan)
        finally:
            if not self._agreed or self._claimed is None:
                self._agreed = False
                self._give_back()
        return self._agreed

    def end_epoch(self, *, last: bool) -> bool:
        """The first worker's buffers everywhere. False: a worker was lost meanwhile."""
        if self.group is not None:
            try:
                share_buffers(self.group, self._replica.model)
                if last:  # no more collectives: each may end when it likes
                    self.group.farewell(range(self.group.size))
            except GroupLostError:
                self._broken = True
                return False
        return True

    def _switch(self) -> bool:
        place, before, nxt = self.place, self.place.formation, self._claimed
        assert before is not None
        assert nxt is not None
        self._agreed, self._claimed = False, None
        began = time.perf_counter()
        leavers = [r for r, w in enumerate(before.workers) if w not in nxt.formation]
        old = place.group
        place.adopt(nxt)
        if place.me not in nxt.formation:
            if old is not None:
                with contextlib.suppress(GroupLostError):
                    old.farewell(leavers)
            place.leave()
        if old is not None and leavers:
            old.farewell(leavers)
        told = {} if place.group is None else self._hand_over(nxt, place.group)
        ended = time.perf_counter()
        parts = {"wait": began - self._step_ended, "agree": 0.0, "state": ended - began}
        parts["connect_in_background"] = nxt.connect_seconds
        place.announce(ended - self._step_ended, parts | told)
        return True

    def _hand_over(self, nxt: Next, group: Group) -> dict[str, float]:
        if nxt.is_fed:
            return self.handover.finish(nxt, group)
        if all(nxt.trained):
            share_buffers(group, self._replica.model)
        else:
            self.place.become_equal()
        return {}


def _exact(text: str) -> dict[int, int]:
    """`2:50,3:120`: from step 50 on by plan 2, from 120 on by plan 3."""
    pairs = (part.split(":") for part in text.split(",") if part)
    return {int(plan): int(step) for plan, step in pairs}
