"""Recovery after the loss of a worker: the survivors form a group from the furthest state.

Each survivor reports to the membership server that its group has failed, learns which members
continue, connects with them, and takes the state of the one that has trained furthest. The
controller is not needed.
"""

from __future__ import annotations

import gc
import time
from typing import NoReturn

from ones.errors import UserError
from ones.train import logs
from ones.train.membership import Survivors
from ones.train.process_group import GroupLostError
from ones.train.replica import STATE_LOST, StateLostError
from ones.train.worker_context import WorkerContext
from ones.wire.bounds import as_text
from ones.wire.messages import SwitchFailed

STATE_IS_LOST = 77  # exit code of a worker that cannot get the state of the job
_ERRORS = 4  # unexpected ones after which a worker fails: more than _TRANSFERS
_TRANSFERS = 3  # failed ones after which a joining worker leaves: the state may not be sendable

_log = logs.logger(__name__)


def recover(context: WorkerContext, since: float, why: str = "") -> bool:
    """Returns when a new group trains; False if this worker has no state and another order.

    `since`: end of the last step, from which the pause counts; `why`: what failed, if it was not
    the loss of a worker.
    """
    discarded, attempts = context.next_group.discard(), _Attempts(context)
    context.close_all_groups()
    gc.collect()  # other members wait as long as anything refers to the group
    while True:
        layout = context.layout
        assert layout is not None
        context.rendezvous.expect(layout.workers)
        client = context.rendezvous.membership(may_start=context.rendezvous.may_start_store(layout))
        survivors = client.report_failure(
            layout.plan, layout.incarnation, layout.workers, context.position
        )
        has_state = context.replica.is_complete
        if client.expelled:
            context.exit_fenced("the other workers continued without it")
        if context.ends_at_once or (context.must_leave and not has_state):
            context.leave()
        if survivors is None:  # the store died and is replaced, or an order arrived
            if context.next_group.is_ordered and not has_state:
                client.withdraw_failure()
                return False
            continue
        if attempts.connect(survivors):
            break
    assert context.layout is not None
    if discarded is not None and discarded.plan > context.layout.plan:
        reason = as_text(why or "a worker was lost during preparation")
        context.report(SwitchFailed(reason, discarded.plan))
    pause = time.perf_counter() - since
    context.switched(pause, {"reform": pause})
    return True


class _Attempts:
    """Attempts of one worker to continue with the survivors; bounded, so that no job loops."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._errors = self._failed_transfers = 0

    def connect(self, survivors: Survivors) -> bool:
        """False: another attempt must be made."""
        context = self._context
        joins = context.joins_trained and not context.replica.is_complete
        try:
            if _connect(context, survivors):
                return True
        except StateLostError:
            self._leave("all workers that had trained are lost and there is no checkpoint")
        except UserError:
            raise
        except Exception:
            self._errors += 1
            _log.exception("worker %s: recovery failed (%d)", context.worker, self._errors)
            context.close_group(is_lost=True)
            if self._errors == _ERRORS:
                raise
        gc.collect()  # as above
        self._failed_transfers += joins
        if self._failed_transfers == _TRANSFERS:
            self._leave(f"it did not receive the state in {_TRANSFERS} attempts")
        return False

    def _leave(self, why: str) -> NoReturn:
        _log.error("worker %s exits: %s", self._context.worker, why)
        self._context.leave(STATE_IS_LOST)


def _connect(context: WorkerContext, survivors: Survivors) -> bool:
    """Connects the survivors and makes them equal; False: another worker was lost meanwhile."""
    current, plan = context.layout, survivors.plan
    assert current is not None
    ordered = current if current.plan == plan else context.next_group.ordered_layout(plan)
    if ordered is None or context.worker not in survivors.members:
        context.leave()  # this worker is not in the newest plan
    if survivors.limit is not None:
        context.lower_limit(survivors.limit)
    layout = ordered.after_loss(survivors.members, survivors.incarnation)
    context.set_layout(layout)
    if context.rank == 0:
        context.saver.load()  # perhaps no member with state is left
    try:
        if len(survivors.members) > 1:
            context.group = context.rendezvous.connect(layout, context.device)
            context.abort_if_lost()
            context.synchronise(compare=True)
        elif context.position == STATE_LOST:
            raise StateLostError
        elif context.replica.is_unchecked:
            _log.warning(
                "worker %s is left alone and goes on from a state that no digest has confirmed",
                context.worker,
            )
    except GroupLostError as error:
        _log.info("worker %s: group %s is lost: %s", context.worker, layout.name, error)
        context.close_group(is_lost=True)
        return False
    context.replica.has_state, context.replica.is_unchecked = True, False
    return True
