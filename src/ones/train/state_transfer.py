"""State transfer to and from the joining workers of the next group, from start to check.

It starts while training goes on (`background_transfer`), is completed in the switch, and is
checked in the first step together (`digest`).
"""

from __future__ import annotations

from ones.train.background_transfer import StateReceiver, StateSender
from ones.train.buckets import Buckets
from ones.train.digest import DigestCheck
from ones.train.next_group import NextGroup, PreparedGroup
from ones.train.process_group import ProcessGroup
from ones.train.replica import Replica, broadcast_buffers, sender_of

_UNLIMITED = 12 * 3600.0  # seconds: a hanging worker is found by the membership pings


class StateTransfer:
    """The state transfer of one worker, as sender or as receiver."""

    def __init__(self, replica: Replica, buckets: Buckets) -> None:
        self._replica, self._buckets = replica, buckets
        self._sender: StateSender | None = None
        self._prepared: PreparedGroup | None = None  # the group that the sender sends to
        self._finished: StateSender | None = None  # of the last switch, until all is sent
        self._check: DigestCheck | None = None

    @property
    def is_active(self) -> bool:
        return self._sender is not None

    # before the switch

    def update(self, next_group: NextGroup) -> None:
        """Starts, continues or stops sending, as the next group requires."""
        prepared, sender = next_group.ready, self._sender
        if sender is not None and self._prepared is not prepared:
            self.stop()
        elif sender is not None and prepared is not None and sender.problem:
            self.stop()
            next_group.give_up(prepared, sender.problem)
            return
        if self._sender is None and prepared is not None and prepared.receivers:
            assert prepared.group is not None
            self._sender = StateSender(
                self._replica, self._buckets, prepared.group, prepared.receivers
            )
            self._prepared = prepared

    def is_complete_for(self, prepared: PreparedGroup) -> bool:
        if not prepared.receivers:
            return True
        return self._prepared is prepared and self._sender is not None and self._sender.is_complete

    def wait(self) -> None:
        if self._sender is not None:
            self._sender.wait()

    def stop(self) -> None:
        sender, self._sender, self._prepared = self._sender, None, None
        if sender is not None:
            sender.stop()

    def reset(self) -> None:
        """Drops everything: the group is lost."""
        self.stop()
        self._finished = self._check = None

    # in a step

    def wait_until_sent(self) -> None:
        """Waits for the gradients of the last step, before their buffers are overwritten."""
        finished, self._finished = self._finished, None
        if finished is not None:
            finished.wait_until_sent(_UNLIMITED)  # if a member was lost, the step fails
        if self._sender is not None:
            self._sender.wait_until_sent()

    def before_update(self, *, happens: bool) -> None:
        """Call before the optimizer changes the parameters, or skips the update."""
        if self._check is not None:
            self._check.wait()
            self._check = None
        if self._sender is not None:
            self._sender.pause()
            if happens:
                self._sender.send_step()

    def after_update(self) -> None:
        if self._sender is not None:
            self._sender.resume()

    def has_mismatch(self) -> bool:
        """Whether this joining worker received a state that differs; known in its first step."""
        if self._check is None or self._replica.has_state:
            return False
        equal, self._check = self._check.wait(), None
        self._replica.has_state = bool(equal)
        self._replica.is_unchecked = equal is None  # the sender is lost
        return equal is False

    # in the switch

    def finish(self, prepared: PreparedGroup, group: ProcessGroup) -> dict[str, float]:
        """Completes the transfer as the sender. Returns durations for the report."""
        sender, self._sender, self._prepared = self._sender, None, None
        if sender is not None:
            sender.finish()
        # before the check: joining workers receive in this order
        broadcast_buffers(group, self._replica.model, prepared.has_state.index(True))
        if sender is None:
            return {}
        self._finished = sender
        self._check = DigestCheck(self._replica, group, receivers=sender.receivers)
        return {
            "fed_in_background": sender.seconds,
            "optimizer_held": sender.optimizer_wait_seconds,
        }

    def receive(self, prepared: PreparedGroup, group: ProcessGroup) -> None:
        """Receives the state as a joining worker. It counts as state after the check only."""
        source = sender_of(prepared.has_state, group.rank)
        StateReceiver(self._replica, self._buckets, group, source).receive()
        broadcast_buffers(group, self._replica.model, prepared.has_state.index(True))
        self._replica.is_unchecked = True
        self._check = DigestCheck(self._replica, group, source=source)
