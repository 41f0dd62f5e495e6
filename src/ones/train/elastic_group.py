"""Changes of a job's workers between two steps, as one worker sees them.

A switch order arrives while training goes on. A thread connects the next group, and staying workers
send the state to joining workers. When both are done, a worker announces the plan's number in the
notices of every step. The all-reduce of the gradients sums the notices, so all workers see in the
same step that all are ready, and switch after it: leaving workers leave, joining workers have the
state, staying workers continue. No worker waits for one that is not connected.
`docs/decisions/0006-elastic-protocol.md` has the whole protocol; `recovery` handles a loss.
"""

from __future__ import annotations

import contextlib
import os
import time

import torch
from torch import Tensor

from ones.errors import UserError
from ones.train import logs
from ones.train.buckets import Buckets, Notice
from ones.train.comparison import WorkerComparison, are_equal
from ones.train.next_group import PreparedGroup
from ones.train.process_group import GroupLostError, ProcessGroup, SingleWorkerGroup
from ones.train.recovery import recover
from ones.train.replica import StateLostError, broadcast_buffers
from ones.train.state_transfer import StateTransfer
from ones.train.worker_context import TERMINATED, WorkerContext
from ones.wire.messages import Ready

_AT_ONCE = 1000.0  # in the notice END: the process ends, not only the loop
_FAILURES = 3  # unexpected errors in a row after which the worker fails
_PLANS = 64  # notices carry plan numbers modulo this, so that sums are exact in float32

_log = logs.logger(__name__)


class ElasticGroup:
    """The current group of a worker, and its changes between two steps."""

    def __init__(self, context: WorkerContext, buckets: Buckets) -> None:
        self.context, self.buckets = context, buckets
        self.comparison = WorkerComparison(context.replica)
        self.transfer = StateTransfer(context.replica, buckets)
        self.is_over = False  # the loop of the script is to end
        self.is_stopped = False  # because the script of a worker has left its loops
        self.leaves_epoch = False  # the script of a worker has left the loop over batches
        self._replica, self._next_group = context.replica, context.next_group
        self._claimed: PreparedGroup | None = None  # announced in the notices of this step
        # required before the next step, by the notices of the last step or by its failure
        self._agreed = self._lost = self._mismatch = False
        self._must_save = self._must_end = self._worker_leaves = False
        self._step_ended = time.perf_counter()
        self._ticked = time.monotonic()  # when `progress.seconds` was set
        self._failures = 0  # unexpected errors since the last step
        self._problem = ""  # the last of them
        self._exact_steps = _parse_exact_steps(os.environ.get("ONES_EXACT", ""))

    # for the training loop

    @property
    def rank(self) -> int:
        return self.context.rank

    @property
    def group(self) -> ProcessGroup | None:
        return self.context.group

    @property
    def reduce_group(self) -> ProcessGroup | None:
        """The group for gradients. A single worker that sends state needs them in buckets, too."""
        if self.group is None and self.transfer.is_active:
            return SingleWorkerGroup()
        return self.group

    @property
    def has_pending_change(self) -> bool:
        """Whether `settle` must be called before the next step."""
        return (
            self._lost
            or self._agreed
            or self._mismatch
            or self._must_save
            or self._must_end
            or self._worker_leaves
            or self._is_plan_due
        )

    @property
    def _is_plan_due(self) -> bool:
        """Whether an exact schedule requires a switch before the next step."""
        layout = self.context.layout
        if not self._exact_steps or layout is None:
            return False
        step = self._replica.progress.step
        due = max((plan for plan, at in self._exact_steps.items() if at <= step), default=0)
        return layout.plan < due

    def enter(self) -> None:
        """Waits for the first group and gets the state of its members, or of a checkpoint."""
        context = self.context
        while True:
            prepared = self._next_group.claim()
            if prepared is None:
                context.wait_for_order()
                continue
            if context.worker not in prepared.layout:
                context.leave()  # a newer plan excludes it before it was part of any
            started = time.perf_counter()
            context.set_entering(True)
            context.joins_trained = prepared.group is not None and any(prepared.has_state)
            context.adopt(prepared)
            try:
                if context.rank == 0:
                    context.saver.load()
                if prepared.in_background and context.group is not None:
                    self.transfer.receive(prepared, context.group)
                elif context.group is not None:
                    context.synchronise()
            except GroupLostError as error:
                _log.info("worker %s: a member of its first group is lost: %s", self.rank, error)
                self._lost = True  # recover below: the exception keeps connections open
            if self._lost:
                if not self._recover():
                    context.set_entering(False)
                    continue
            else:
                self._replica.has_state = not prepared.in_background
                context.switched(time.perf_counter() - started, {})
            if self.rank == 0 and context.steps_done and not self._replica.progress.step:
                _log.warning(
                    "no checkpoint was found: training starts from zero; %d steps are lost",
                    context.steps_done,
                )
            if self.rank:  # dropout must differ between workers
                progress = self._replica.progress
                torch.manual_seed(hash((progress.seed, progress.step, self.rank)))
            context.has_entered = True
            context.set_entering(False)
            context.report(Ready())
            return

    # in a step

    def notices(self) -> dict[Notice, float | Tensor]:
        """The notices of this worker. A group announced as ready cannot be withdrawn any more."""
        context = self.context
        values: dict[Notice, float | Tensor] = {}
        if self._is_ready():
            self._claimed = self._next_group.claim()
        if self._claimed is None:
            values[Notice.NOT_READY] = 1.0
        else:
            plan = self._claimed.layout.plan % _PLANS
            values[Notice.PLAN], values[Notice.PLAN_SQUARED] = float(plan), float(plan * plan)
        if context.must_save_and_leave:
            values[Notice.CHECKPOINT] = 1.0
        if context.end is not None:
            values[Notice.END] = 1.0 if context.ends_normally else _AT_ONCE
        if context.is_terminated:
            values[Notice.LEAVING] = 1.0
        if self.transfer.has_mismatch():
            values[Notice.UNEQUAL] = 1.0
        if self.group is not None:
            mark = self.comparison.fingerprint()
            values[Notice.FINGERPRINT], values[Notice.FINGERPRINT_SQUARED] = mark, mark * mark
        if self.rank == 0:
            values[Notice.SECONDS] = (
                self._replica.progress.seconds + time.monotonic() - self._ticked
            )
        return values

    def end_notices(self, notice: Notice) -> dict[Notice, float | Tensor]:
        """The notices with which a worker leaves its loop: it is not ready for a switch."""
        values = self.notices()
        if self._claimed is not None:
            self._release_claim()
            del values[Notice.PLAN], values[Notice.PLAN_SQUARED]
        return values | {Notice.NOT_READY: 1.0, notice: 1.0}

    def _is_ready(self) -> bool:
        prepared = self._next_group.ready
        if prepared is None or not self.transfer.is_complete_for(prepared):
            return False
        return self._exact_steps.get(prepared.layout.plan, 0) <= self._replica.progress.step + 1

    def handle_notices(self, sums: list[float]) -> bool:
        """Handles the summed notices of a step; False: the step is undone.

        The state of a joining worker differs, or a script has left its loop.
        """
        size = 1 if self.group is None else self.group.size
        claimed = self._claimed
        if claimed is not None:
            plan = claimed.layout.plan % _PLANS
            # all numbers are equal if their mean is this worker's and their variance is zero
            self._agreed = (
                sums[Notice.NOT_READY] == 0.0
                and sums[Notice.PLAN] == size * plan
                and sums[Notice.PLAN_SQUARED] == size * plan * plan
            )
            if not self._agreed:
                self._release_claim()
        self._must_save = sums[Notice.CHECKPOINT] > 0.0
        self._worker_leaves = sums[Notice.LEAVING] > 0.0
        if sums[Notice.END] > 0.0:
            self.is_over = True
            self._must_end = sums[Notice.END] >= _AT_ONCE
        self._mismatch = sums[Notice.UNEQUAL] > 0.0
        self._replica.progress.seconds, self._ticked = sums[Notice.SECONDS], time.monotonic()
        self.leaves_epoch = False
        if sums[Notice.BREAK] + sums[Notice.STOP] > 0.0:
            self.leave_loops(is_stop=sums[Notice.STOP] > 0.0)
        if self._mismatch or self.leaves_epoch or self.is_stopped:
            return False
        alike = are_equal(size, sums[Notice.FINGERPRINT], sums[Notice.FINGERPRINT_SQUARED])
        if self.group is not None and not alike:
            self.comparison.fail(self.group)
        return True

    def after_step(self) -> bool:
        """Returns True if the step was disturbed: this worker sent state."""
        self._step_ended, self._failures = time.perf_counter(), 0
        was_sending = self.transfer.is_active
        self.context.after_step()
        if not self._agreed:
            self.transfer.update(self._next_group)
        return was_sending or self.transfer.is_active

    @property
    def has_lost(self) -> bool:
        """Whether a member was lost, so that the group must be formed again."""
        return self._lost

    def leave_loops(self, *, is_stop: bool) -> None:
        """The script of a worker has left its loop over batches, or all loops."""
        self.leaves_epoch = not is_stop
        if is_stop:
            self.is_over = self.is_stopped = True

    def step_failed(self) -> None:
        """Records that a member was lost in the step; nothing was updated."""
        self._lost = True
        self._release_claim()

    def end_epoch(self, *, last: bool) -> bool:
        """Copies the buffers of rank 0 to all workers. False: call `settle`, then try again.

        A worker was lost meanwhile, or one that joined after the last step needs the state again.
        """
        if self.group is not None:
            try:
                if not self.group.all_equal(-2 if self.transfer.has_mismatch() else -1):
                    self._mismatch = True
                    return False
                self.comparison.compare_parameters(self.group)
                broadcast_buffers(self.group, self._replica.model)
                if last:  # no more collectives: each worker may end at any time
                    self.group.acknowledge_leave(range(self.group.size))
            except GroupLostError:
                self._lost = True
                return False
        return True

    def _release_claim(self) -> None:
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            self._next_group.release(claimed)

    # between two steps

    def settle(self) -> None:
        """Makes all changes that are due between two steps."""
        while True:
            is_bounded = True  # recovery and saving make several attempts of their own
            try:
                if self._lost:
                    self._recover()
                is_bounded = self._must_end or self._must_save or self._worker_leaves
                if self._mismatch:
                    self._mismatch = False
                    self._replica.is_changed_by_script = True
                    self.context.synchronise()
                if self._must_end or self._must_save or self._worker_leaves:
                    self._save_and_leave()
                is_bounded = False
                if self._agreed or (self._is_plan_due and self._wait_for_due_plan()):
                    self._switch()
            except GroupLostError:
                self._lost = True
            except (UserError, StateLostError):
                raise
            except Exception as error:
                if is_bounded:
                    raise
                self._fail(error)
            else:
                return

    def _fail(self, error: Exception) -> None:
        """An unexpected error costs the plan, not the job: the group is formed again.

        A plan that was adopted has not failed: the group that is formed again keeps to it.
        """
        self._failures += 1
        if self._failures > _FAILURES:
            raise error
        _log.error("worker %s: a change of workers failed", self.context.worker, exc_info=error)
        layout = self.context.layout
        if layout is not None and self.context.worker not in layout:
            self.context.leave()  # it was leaving: no group waits for it any more
        self._problem = logs.describe(error)
        self._lost = True

    def _recover(self) -> bool:
        self._lost = self._agreed = self._mismatch = False
        self._release_claim()
        self.transfer.reset()
        why, self._problem = self._problem, ""
        return recover(self.context, self._step_ended, why)

    def _save_and_leave(self) -> None:
        """Saves, unless the job has ended; then one worker leaves, or all do."""
        if not self._must_end:
            self.context.save()
        worker_leaves, self._worker_leaves = self._worker_leaves, False
        if self.group is not None:
            self.group.acknowledge_leave(range(self.group.size))
        if self._must_end or self._must_save:
            self.context.leave()
        if worker_leaves and self.context.is_terminated:
            self.context.leave(TERMINATED)

    def _wait_for_due_plan(self) -> bool:
        """With an exact schedule: waits until all members are ready, after the same step."""
        context, next_group = self.context, self._next_group
        with next_group.changed:
            while next_group.ready is None:
                if context.end is not None or context.is_terminated:
                    return False
                next_group.changed.wait(1.0)
        self.transfer.update(next_group)
        self.transfer.wait()
        self.transfer.update(next_group)  # gives up the plan if the transfer failed
        self._step_ended = time.perf_counter()  # the wait is part of the schedule and no pause
        self._claimed = next_group.claim()
        plan = -1 if self._claimed is None else self._claimed.layout.plan
        try:
            self._agreed = self.group is None or self.group.all_equal(plan)
        finally:
            if not self._agreed or self._claimed is None:
                self._agreed = False
                self._release_claim()
        return self._agreed

    def _switch(self) -> None:
        context, before, prepared = self.context, self.context.layout, self._claimed
        assert before is not None
        assert prepared is not None
        self._agreed, self._claimed = False, None
        started = time.perf_counter()
        leaving = [r for r, w in enumerate(before.workers) if w not in prepared.layout]
        old = context.group
        context.adopt(prepared)
        if context.worker not in prepared.layout:
            if old is not None:
                with contextlib.suppress(GroupLostError):
                    old.acknowledge_leave(leaving)
            context.leave()
        if old is not None and leaving:
            old.acknowledge_leave(leaving)
        elif old is not None:
            old.drain()  # before the first operation of the next group
        durations = {} if context.group is None else self._transfer_state(prepared, context.group)
        ended = time.perf_counter()
        parts = {"wait": started - self._step_ended, "agree": 0.0, "state": ended - started}
        parts["connect_in_background"] = prepared.connect_seconds
        if context.group is None:
            self.buckets.release()
        context.switched(ended - self._step_ended, parts | durations)

    def _transfer_state(self, prepared: PreparedGroup, group: ProcessGroup) -> dict[str, float]:
        if prepared.in_background:
            return self.transfer.finish(prepared, group)
        if all(prepared.has_state):
            broadcast_buffers(group, self._replica.model)
        else:
            self.context.synchronise()
        return {}


def _parse_exact_steps(text: str) -> dict[int, int]:
    """The step from which each plan holds: `2:50,3:120` is {2: 50, 3: 120}."""
    pairs = (part.split(":") for part in text.split(",") if part)
    return {int(plan): int(step) for plan, step in pairs}
