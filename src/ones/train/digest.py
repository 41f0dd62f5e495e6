"""Checks that a joining worker received the state bit by bit, in the background.

A script may change parameters outside the optimizer (clamp them after each step, say), which is
not repeated on a joining worker. So in the first step together, while nothing changes, sender and
receiver compare digests of their state. A receiver that differs says so in the notices of that
step: the step does not count, and the state is sent as a whole.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import torch

from ones.train.process_group import GroupLostError, ProcessGroup, wait_all
from ones.train.replica import Replica

_TAG = 4


class DigestCheck:
    """Compares the digests of a sender (`receivers`) and a receiver (`source`)."""

    def __init__(
        self,
        replica: Replica,
        group: ProcessGroup,
        *,
        receivers: Sequence[int] = (),
        source: int | None = None,
    ) -> None:
        self._replica, self._group = replica, group
        self._receivers, self._source = receivers, source
        self._equal: bool | None = None
        self._thread = threading.Thread(target=self._compare, name="ones-digest", daemon=True)
        self._thread.start()

    def wait(self) -> bool | None:
        """Waits; True if equal, None if a member was lost. Parameters must not change meanwhile."""
        self._thread.join()
        return self._equal

    def _compare(self) -> None:
        with contextlib.suppress(GroupLostError):
            digest = self._replica.digest()
            if self._source is None:
                sent = torch.tensor([digest], dtype=torch.int64)
                works = [self._group.send(sent, rank, _TAG) for rank in self._receivers]
                self._group.keep_until_sent(works, sent)
                self._equal = True
            else:
                received = torch.zeros(1, dtype=torch.int64)
                wait_all([self._group.receive(received, self._source, _TAG)])
                self._equal = int(received) == digest
