"""Recovery: a worker without state leaves on request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ones.train.layout import GroupLayout
from ones.train.recovery import recover
from ones.train.worker_context import TERMINATED, WorkerContext
from ones.wire.messages import End, Member


class JoiningWorker(WorkerContext):
    """A worker that gets an order while it waits for survivors."""

    def __init__(self, *, has_state: bool) -> None:
        self.layout = GroupLayout(2, 0, (Member(worker="n/0", batch=8),))
        self.end, self.is_terminated, self.must_save_and_leave = None, False, False
        self.replica = cast(Any, SimpleNamespace(has_state=has_state, progress=None))
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

    position = 0

    def close_group(self) -> None:
        pass

    def finish(self, *, done: bool) -> None:
        assert not done

    def _report_failure(self, *_: object) -> None:
        self.asked += 1
        assert self.asked < 3, "it waits on"


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
