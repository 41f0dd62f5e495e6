"""After a loss: those who live find one another and go on from the furthest state among them.

Each says on the roll call that its group has failed, learns who goes on, connects, and takes
the state of the one that got furthest. No controller is needed.
"""

from __future__ import annotations

import gc
import time

from ones.train.group import GroupLostError
from ones.train.place import Place
from ones.train.roll_call import Reform
from ones.wire.messages import SwitchFailed


def reform(place: Place, since: float) -> bool:
    """False: a newcomer that has nothing to lose was called elsewhere."""
    pending = place.upcoming.drop()
    place.close_group()
    gc.collect()  # whatever still refers to the group keeps others waiting
    while True:
        formation = place.formation
        assert formation is not None
        place.meeting.expect(formation.workers)
        calls = place.meeting.calls(may_start=place.meeting.place(formation))
        answer = calls.reform(formation.plan, formation.incarnation, formation.workers, place.mark)
        if calls.expelled:
            place.exit_quietly("the others went on without it")
        if place.ends_at_once or (place.must_go and not place.replica.has_state):
            place.leave()
        if answer is None:  # the store died and another is on its way, or an order came
            if place.upcoming.is_there and not place.replica.has_state:
                calls.unfail()
                return False
            continue
        if _formed(place, answer):
            break
    assert place.formation is not None
    if pending is not None and pending.plan > place.formation.plan:
        place.say(SwitchFailed("a worker was lost while it was prepared", pending.plan))
    pause = time.perf_counter() - since
    place.announce(pause, {"reform": pause})
    return True


def _formed(place: Place, answer: Reform) -> bool:
    """False: one more was lost on the way."""
    present = place.formation
    assert present is not None
    base = present if present.plan == answer.plan else place.upcoming.known(answer.plan)
    if base is None or place.me not in answer.members:
        place.leave()  # the newest plan has no place for this worker
    if answer.limit is not None:
        place.no_more_than(answer.limit)
    formation = base.after_loss(answer.members, answer.incarnation)
    place.now_in_force(formation)
    if place.rank == 0:
        place.saver.load()  # nobody who has trained may be left
    try:
        if len(answer.members) > 1:
            place.group = place.meeting.connect(formation, place.device)
            place.become_equal()
    except GroupLostError:
        place.close_group()
        return False
    place.replica.has_state = True
    return True
