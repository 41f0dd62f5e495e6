"""Recovery after the loss of a worker: the survivors form a group from the furthest state.

Each survivor reports to the membership server that its group has failed, learns which members
continue, connects with them, and takes the state of the one that has trained furthest. The
controller is not needed.
"""

from __future__ import annotations

import gc
import time

from ones.train.membership import Survivors
from ones.train.process_group import GroupLostError
from ones.train.worker_context import WorkerContext
from ones.wire.messages import SwitchFailed


def recover(context: WorkerContext, since: float) -> bool:
    """Returns when a new group trains; False if this worker has no state and another order.

    `since`: end of the last step, from which the pause counts.
    """
    discarded = context.next_group.discard()
    context.close_group()
    gc.collect()  # other members wait as long as anything refers to the group
    while True:
        layout = context.layout
        assert layout is not None
        context.rendezvous.expect(layout.workers)
        client = context.rendezvous.membership(may_start=context.rendezvous.may_start_store(layout))
        survivors = client.report_failure(
            layout.plan, layout.incarnation, layout.workers, context.position
        )
        has_state = context.replica.has_state
        if client.expelled:
            context.exit_fenced("the other workers continued without it")
        if context.ends_at_once or (context.must_leave and not has_state):
            context.leave()
        if survivors is None:  # the store died and is replaced, or an order arrived
            if context.next_group.is_ordered and not has_state:
                client.withdraw_failure()
                return False
            continue
        if _connect(context, survivors):
            break
    assert context.layout is not None
    if discarded is not None and discarded.plan > context.layout.plan:
        context.report(SwitchFailed("a worker was lost during preparation", discarded.plan))
    pause = time.perf_counter() - since
    context.switched(pause, {"reform": pause})
    return True


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
            context.synchronise()
    except GroupLostError:
        context.close_group()
        return False
    context.replica.has_state = True
    return True
