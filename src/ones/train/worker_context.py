"""A worker in its job: its group, its orders, its connections, and how it leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import torch
from msgspec.structs import replace

from ones.train import logs
from ones.train.checkpoints import CheckpointSaver
from ones.train.controller_client import ControllerClient
from ones.train.layout import GroupLayout
from ones.train.next_group import (
    HAS_STATE,
    NO_STATE,
    SENDS_IN_BACKGROUND,
    NextGroup,
    PreparedGroup,
)
from ones.train.process_group import ProcessGroup
from ones.train.rendezvous import Rendezvous
from ones.train.replica import STATE_LOST, Replica, broadcast_buffers
from ones.train.sampler import BatchPartition
from ones.wire.bounds import as_text
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import (
    CheckpointAndLeave,
    End,
    Hung,
    Joined,
    Leaving,
    MemoryLimit,
    Order,
    StoreStarted,
    Switch,
    Switched,
    SwitchFailed,
    Withdraw,
)

TERMINATED = 128 + 15
FENCED = 75  # exit code of a fenced worker: 0 would say that the script is done
DEVICE_STUCK = 76  # exit code: operations of a device could not be aborted
_NORMAL_ENDS = ("converged", "finished")
_CLOSE_AFTER = 20  # steps: closing the connections of an old group takes milliseconds
_FLUSH_SECONDS = 10.0

_log = logs.logger(__name__)


class WorkerContext:
    """Connects a worker's replica, group, controller and checkpoints."""

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
        self.worker = environment.worker
        self.run_dir = environment.run_dir
        self.steps_done = environment.steps_done  # by the job, before this worker was launched
        self.replica = replica
        self.device = device
        self.limit, self._minimum = limit, minimum  # samples of a micro-batch
        self._dataset_size = dataset_size
        self._is_entering = False  # others may train; this worker does not have the whole state
        self.has_entered = False
        self.joins_trained = False  # its first group has members that have trained
        self.layout: GroupLayout | None = None
        self.rank = 0  # in the layout; -1: the layout excludes this worker, which is leaving
        self.group: ProcessGroup | None = None
        self._old_groups: list[tuple[int, ProcessGroup | None]] = []  # and the step to close them
        self.rendezvous = Rendezvous(
            environment,
            on_store_started=lambda address: self.report(StoreStarted(str(address))),
            on_lost=self._on_lost,
            on_store_silent=lambda: self._abort_group(hangs=True),
            on_broken=self._on_broken,
        )
        self.controller = ControllerClient(
            environment,
            on_order=self._on_order,
            on_fenced=lambda: self.exit_fenced(
                "its job has replaced it (fenced by the controller)"
            ),
            on_store=self.rendezvous.set_store_address,
        )
        self.report = self.controller.report
        self.next_group = NextGroup(
            self.worker,
            self.rendezvous,
            device,
            state_role=self._state_role,
            on_failed=lambda layout, why: self.report(SwitchFailed(as_text(why), layout.plan)),
        )
        self.saver = CheckpointSaver(environment.checkpoints, replica)
        self.description: Joined | None = None  # as it was reported
        self.end: End | None = None
        self.must_save_and_leave = False
        self.is_terminated = False
        self.has_left = False
        self.on_switched: list[Callable[[bool], None]] = []  # argument: was it rank 0 before?
        self._was_first = False

    @property
    def partition(self) -> BatchPartition:
        assert self.layout is not None
        return self.layout.partition(self.worker, self.limit, self._minimum)

    @property
    def position(self) -> int:
        """How far this replica has trained, comparable between workers.

        A state that was not checked comes behind a checked one of the same step.
        -1: it has no state. STATE_LOST: nor may it start anew, since other workers had trained.
        """
        if not self.replica.is_complete:
            replica, trained = self.replica, self.joins_trained or self.replica.group_has_trained
            may_start = replica.is_from_checkpoint or not trained
            return -1 if may_start else STATE_LOST
        progress = self.replica.progress
        place = progress.epoch * (self._dataset_size + 1) + progress.offset
        return 2 * place + self.replica.has_state

    @property
    def ends_normally(self) -> bool:
        """Whether the loop of the script is to end, and then the script by itself."""
        return self.end is not None and self.end.reason in _NORMAL_ENDS

    @property
    def ends_at_once(self) -> bool:
        return self.end is not None and not self.ends_normally

    @property
    def must_leave(self) -> bool:
        """Whether an order or SIGTERM requires this worker to leave.

        A worker without state leaves at once, so that it cannot restart a finished job.
        """
        return self.end is not None or self.must_save_and_leave or self.is_terminated

    def set_entering(self, is_entering: bool) -> None:
        with self.next_group.changed:
            self._is_entering = is_entering
            self.next_group.changed.notify_all()

    def _state_role(self) -> int:
        with self.next_group.changed:
            self.next_group.changed.wait_for(lambda: not self._is_entering)
        if not self.has_entered:
            return NO_STATE
        return SENDS_IN_BACKGROUND if self.replica.is_repeatable else HAS_STATE

    def describe_again(self, epoch_samples: int) -> None:
        """Reports another number of samples per epoch than at first."""
        if self.description is not None and self.description.dataset_size != epoch_samples:
            self.description = replace(self.description, dataset_size=epoch_samples)
            self.report(self.description)

    def describe_larger(self, epoch_samples: int) -> None:
        """Reports twice this number of samples per epoch if it is larger than reported so far."""
        if self.description is not None and self.description.dataset_size < epoch_samples:
            self.describe_again(2 * epoch_samples)

    # the group

    def wait_for_order(self, *, connected: bool = True) -> None:
        """Waits for a group that is ordered, and connected. Before, a worker stays on the CPU."""
        found = self.next_group

        def has_come() -> bool:
            return found.ready is not None if connected else found.is_ordered

        with found.changed:
            while not has_come() and not self.must_leave:
                found.changed.wait(1.0)
            if has_come():
                return
        self.leave()

    def adopt(self, prepared: PreparedGroup) -> None:
        before = self.layout
        same_workers = before is not None and before.workers == prepared.layout.workers
        if not (same_workers and prepared.group is None):
            self._old_groups.append((self.replica.progress.step + _CLOSE_AFTER, self.group))
            self.group = prepared.group
        self.set_layout(prepared.layout)

    def set_layout(self, layout: GroupLayout) -> None:
        self.layout = layout
        self.rank = layout.workers.index(self.worker) if self.worker in layout else -1
        self.controller.generation = layout.generation
        self.next_group.set_current(layout)
        self.rendezvous.join_generation(layout.generation)
        self.abort_if_lost()

    def abort_if_lost(self) -> None:
        """Aborts a new group if a member was lost before the group was this worker's."""
        if self.layout is not None and self.rendezvous.has_lost(self.layout.workers):
            self._abort_group(hangs=False)

    def synchronise(self, *, compare: bool = False) -> None:
        """Makes all members equal to the one that has trained furthest.

        `compare`: members that have trained equally far also compare digests of their state.
        """
        assert self.group is not None
        self.replica.synchronise(self.group, self.position, compare=compare)
        broadcast_buffers(self.group, self.replica.model)

    def switched(self, pause: float, parts: dict[str, float]) -> None:
        """Call when the members of a new layout have the state: sets the batch and reports."""
        layout, progress = self.layout, self.replica.progress
        assert layout is not None
        self.replica.rate.set_batch(layout.batch, progress.step)
        if progress.limit is not None:
            self.lower_limit(progress.limit)
        if self.rank == 0:
            self.report(Switched(pause, layout.workers, parts, progress.step))
        for call in self.on_switched:
            call(self._was_first)
        self._was_first = self.rank == 0

    def lower_limit(self, limit: int) -> None:
        """Takes smaller micro-batches: a worker ran out of memory with larger ones."""
        self.limit = min(self.limit or limit, limit)

    def after_step(self) -> None:
        if self._old_groups and self._old_groups[0][0] <= self.replica.progress.step:
            _, old = self._old_groups.pop(0)
            if old is not None:
                self._close(old, is_lost=False)

    def save_if_due(self, *, epoch_ends: bool = False) -> bool:
        """Returns True if this worker has begun to save a checkpoint. Call it between two steps."""
        if self.rank == 0 and self.layout is not None:
            return self.saver.save_if_due(self.layout.generation, epoch_ends=epoch_ends)
        return False

    def close_all_groups(self) -> None:
        """After a loss. Leaving workers may wait for acknowledgements in an old group."""
        old, self._old_groups = self._old_groups, []
        for _, group in old:
            if group is not None:
                self._close(group, is_lost=False)
        self.close_group(is_lost=True)

    def close_group(self, *, is_lost: bool) -> None:
        group, self.group = self.group, None
        if group is not None:
            self._close(group, is_lost=is_lost)

    def _close(self, group: ProcessGroup, *, is_lost: bool) -> None:
        if not group.close(is_lost=is_lost):
            _log.error("worker %s exits: its device does not end its operations", self.worker)
            os._exit(DEVICE_STUCK)

    # saving and leaving

    def save(self) -> None:
        if self.rank == 0 and self.layout is not None:
            self.saver.save(self.layout.generation)

    def learn_memory_limit(self, samples: int) -> None:
        """Memory ran out in a step, and the worker goes on: with smaller parts, as all others."""
        self.replica.progress.limit = samples
        self.lower_limit(samples)
        self.rendezvous.report_memory_limit(samples)
        self.report(MemoryLimit(samples))

    def report_memory_limit(self, samples: int) -> None:
        """Passes the memory limit to the other workers and, by a checkpoint, to later ones."""
        self.replica.progress.limit = samples
        self.rendezvous.report_memory_limit(samples)
        self.save()

    def leave(self, code: int = 0) -> NoReturn:
        """Ends the script, wherever it is."""
        self.finish(done=False)
        raise SystemExit(code)

    def finish(self, *, done: bool) -> None:
        """Reports that this worker leaves, and closes everything; the process ends soon."""
        self.report(Leaving(done))
        self.close()

    def close(self) -> None:
        """Closes everything without reporting `Leaving`, as after a failure of the script."""
        self.has_left = True
        self.saver.wait()
        self.next_group.discard()
        self.close_group(is_lost=False)
        self._old_groups.clear()
        self.rendezvous.leave()
        self.controller.close(_FLUSH_SECONDS)

    def exit_fenced(self, why: str) -> NoReturn:
        _log.warning("worker %s exits: %s", self.worker, why)
        os._exit(FENCED)

    def terminate(self, *_: object) -> None:
        """Handles SIGTERM."""
        self.is_terminated = True  # first: a SystemExit raised in a destructor is swallowed
        if self.layout is None or not self.replica.has_state:
            sys.exit(TERMINATED)

    # in the threads of controller client and membership

    def _on_lost(self, worker: str, hangs: bool) -> None:
        """Aborts the group of a lost worker: a device's operations would wait for it for ever."""
        if hangs:
            self.report(Hung(worker))
        if self.layout is not None and worker in self.layout:
            self._abort_group(hangs=hangs)

    def _on_broken(self, generation: tuple[int, int]) -> None:
        """Aborts a group that another member, which lives, has given up."""
        if self.layout is not None and self.layout.generation == generation:
            self._abort_group(hangs=False)

    def _abort_group(self, *, hangs: bool) -> None:
        group = self.group
        if group is not None:
            group.abort(hangs=hangs)

    def _on_order(self, order: Order) -> None:
        if isinstance(order, Switch):
            self.next_group.prepare(GroupLayout(order.plan, 0, order.members))
        elif isinstance(order, Withdraw):
            self.next_group.withdraw(order.withdrawn)
        elif isinstance(order, CheckpointAndLeave):
            self.must_save_and_leave = True
        elif isinstance(order, End):
            self.end = order
        with self.next_group.changed:
            self.next_group.changed.notify_all()
        self.rendezvous.interrupt()
