"""Recovery: a worker without state leaves on request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ones.train.layout import GroupLayout
from ones.train.membership import Survivors
from ones.train.progress import TrainingProgress
from ones.train.recovery import STATE_IS_LOST, recover
from ones.train.state_transfer import StateTransfer
from ones.train.worker_context import TERMINATED, WorkerContext
from ones.wire.messages import End, Member


class JoiningWorker(WorkerContext):
    """A worker that gets an order while it waits for survivors."""

    def __init__(self, *, has_state: bool) -> None:
        self._dataset_size = 100
        self.layout = GroupLayout(2, 0, (Member(worker="n/0", batch=8),))
        self.end, self.is_terminated, self.must_save_and_leave = None, False, False
        self.worker, self.limit, self.rank = "n/0", None, 0
        self.joins_trained = False
        self.survivors: Survivors | None = None
        self.replica = cast(
            Any,
            SimpleNamespace(
                has_state=has_state,
                is_complete=has_state,
                is_unchecked=False,
                is_from_checkpoint=False,
                group_has_trained=False,
                progress=None,
            ),
        )
        self.saver = cast(Any, SimpleNamespace(load=lambda: None))
        self.next_group = cast(Any, SimpleNamespace(discard=lambda: None, is_ordered=False))
        self.asked = 0
        client = SimpleNamespace(report_failure=self._report_failure, expelled=False)
        self.rendezvous = cast(
            Any,
            SimpleNamespace(
                expect=lambda workers: None,
                may_start_store=lambda layout: True,
                membership=lambda may_start: client,
            ),
        )

    @property
    def position(self) -> int:
        return 0 if self.replica.has_state else super().position

    def set_layout(self, layout: GroupLayout) -> None:
        self.layout = layout

    def switched(self, pause: float, parts: dict[str, float]) -> None:
        pass

    def close_all_groups(self) -> None:
        pass

    def finish(self, *, done: bool) -> None:
        assert not done

    def _report_failure(self, *_: object) -> Survivors | None:
        self.asked += 1
        assert self.asked < 3, "it waits on"
        return self.survivors


def test_a_worker_without_state_does_not_restart_a_finished_job() -> None:
    context = JoiningWorker(has_state=False)
    context.end = End("finished", 3)
    with pytest.raises(SystemExit):
        recover(context, 0.0)
    assert context.asked == 1


def test_it_goes_although_the_exit_of_its_signal_was_swallowed() -> None:
    context = JoiningWorker(has_state=False)
    with pytest.raises(SystemExit) as exit:
        context.terminate()
    assert exit.value.code == TERMINATED
    with pytest.raises(SystemExit):
        recover(context, 0.0)


def test_one_that_has_the_state_stays_until_it_is_safe() -> None:
    context = JoiningWorker(has_state=True)
    context.end = End("finished", 3)
    with pytest.raises(AssertionError, match="it waits on"):
        recover(context, 0.0)


@pytest.mark.parametrize("joins_trained", [False, True])
@pytest.mark.parametrize("group_has_trained", [False, True])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_worker_without_state_that_is_left_alone_does_not_begin_again(
    *, joins_trained: bool, group_has_trained: bool, has_checkpoint: bool
) -> None:
    """All others have trained and are lost: only a checkpoint is a state to go on from."""
    context = JoiningWorker(has_state=False)
    context.joins_trained = joins_trained
    context.replica.group_has_trained = group_has_trained  # a transfer to a founder broke off
    context.replica.is_from_checkpoint = has_checkpoint
    context.survivors = Survivors(2, 1, ("n/0",))
    if (joins_trained or group_has_trained) and not has_checkpoint:
        with pytest.raises(SystemExit) as exit:
            recover(context, 0.0)
        assert exit.value.code == STATE_IS_LOST
    else:
        assert recover(context, 0.0)


def test_a_complete_state_is_used_although_it_was_not_checked() -> None:
    """The sender is lost in the first step together: its state is nowhere else."""
    context = JoiningWorker(has_state=False)
    context.joins_trained = context.replica.group_has_trained = True
    state = dict(is_unchecked=True, is_complete=True, progress=TrainingProgress(seed=0))
    vars(context.replica).update(state)
    context.survivors = Survivors(2, 1, ("n/0",))
    assert recover(context, 0.0)
    assert context.replica.has_state


@pytest.mark.parametrize(
    ("equal", "has_state", "is_unchecked"),
    [(True, True, False), (False, False, False), (None, False, True)],
)
def test_a_check_that_broke_off_leaves_the_state_unchecked(
    equal: bool | None, has_state: bool, is_unchecked: bool
) -> None:
    replica = cast(Any, SimpleNamespace(has_state=False, is_unchecked=True))
    transfer = StateTransfer(replica, cast(Any, None))
    transfer._check = cast(Any, SimpleNamespace(wait=lambda: equal))
    assert transfer.has_mismatch() is (equal is False)
    assert (replica.has_state, replica.is_unchecked) == (has_state, is_unchecked)
