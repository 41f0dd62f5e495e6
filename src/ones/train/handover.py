"""How a worker hands the state to newcomers of the next formation, or gets it as one.

Begun while training goes on (`feeding`), finished in the switch, and looked at in the first step
together (`proof`).
"""

from __future__ import annotations

from ones.train.buckets import Buckets
from ones.train.feeding import Feeder, Follower
from ones.train.group import Group
from ones.train.proof import Proof
from ones.train.replica import Replica, feeder_of, share_buffers
from ones.train.upcoming import Next, Upcoming

_LONG = 12 * 3600.0  # seconds: who hangs is found by the roll call


class Handover:
    def __init__(self, replica: Replica, buckets: Buckets) -> None:
        self._replica, self._buckets = replica, buckets
        self._feeder: Feeder | None = None
        self._next: Next | None = None  # whose newcomers it feeds
        self._fed: Feeder | None = None  # of the last switch, until its last words have arrived
        self._proof: Proof | None = None

    @property
    def is_going_on(self) -> bool:
        return self._feeder is not None

    # before the switch

    def go_on(self, upcoming: Upcoming) -> None:
        """Begin, go on, or stop, as the next formation has newcomers of ours."""
        nxt, feeder = upcoming.ready, self._feeder
        if feeder is not None and self._next is not nxt:
            self.stop()
        elif feeder is not None and nxt is not None and feeder.problem:
            self.stop()
            upcoming.fail(nxt, feeder.problem)
            return
        if self._feeder is None and nxt is not None and nxt.group is not None and nxt.receivers:
            self._feeder = Feeder(self._replica, self._buckets, nxt.group, nxt.receivers)
            self._next = nxt

    def is_done_for(self, nxt: Next) -> bool:
        if not nxt.receivers:
            return True
        return self._next is nxt and self._feeder is not None and self._feeder.is_complete

    def wait(self) -> None:
        if self._feeder is not None:
            self._feeder.wait()

    def stop(self) -> None:
        feeder, self._feeder, self._next = self._feeder, None, None
        if feeder is not None:
            feeder.stop()

    def forget(self) -> None:
        """The group is lost."""
        self.stop()
        self._fed = self._proof = None

    # in a step

    def buffers_are_needed(self) -> None:
        """Gradients are about to be written: those of the last step must have been sent."""
        fed, self._fed = self._fed, None
        if fed is not None:
            fed.wait_for_buffers(_LONG)  # if a member was lost, the step will tell
        if self._feeder is not None:
            self._feeder.wait_for_buffers()

    def before_update(self, *, happens: bool) -> None:
        """The optimizer is about to change the parameters, or leaves them as they are."""
        if self._proof is not None:
            self._proof.wait()
            self._proof = None
        if self._feeder is not None:
            self._feeder.hold()
            if happens:
                self._feeder.repeat()

    def after_update(self) -> None:
        if self._feeder is not None:
            self._feeder.release()

    def is_unequal(self) -> bool:
        """In the first step together: was this newcomer fed and is not equal?"""
        if self._proof is None or self._replica.has_state:
            return False
        holds, self._proof = self._proof.wait(), None
        self._replica.has_state = bool(holds)
        return holds is False

    # in the switch

    def finish(self, nxt: Next, group: Group) -> dict[str, float]:
        """To newcomers that were fed. Says how long what took."""
        feeder, self._feeder, self._next = self._feeder, None, None
        if feeder is not None:
            feeder.finish()
        # before the proof: newcomers take things in this order
        share_buffers(group, self._replica.model, nxt.trained.index(True))
        if feeder is None:
            return {}
        self._fed = feeder
        self._proof = Proof(self._replica, group, to=feeder.receivers)
        return {"fed_in_background": feeder.seconds, "optimizer_held": feeder.held_seconds}

    def be_fed(self, nxt: Next, group: Group) -> None:
        """As a newcomer. It has no state to offer until it has proven equal."""
        source = feeder_of(nxt.trained, group.rank)
        Follower(self._replica, self._buckets, group, source).follow()
        share_buffers(group, self._replica.model, nxt.trained.index(True))
        self._proof = Proof(self._replica, group, source=source)
