"""Newcomers that were fed while training went on are equal, bit by bit: looked at, not believed.

A script may change parameters by itself (clamp them after each step, say), which nobody repeats
for a newcomer. So in the first step together, while nothing changes, the one that fed and the
newcomer add up their bits in the background. A newcomer that differs says so in the notices of
that very step: it counts for nobody, and the state is sent whole.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import torch

from ones.train.group import Group, GroupLostError, wait_all
from ones.train.replica import Replica

_TAG = 4


class Proof:
    def __init__(
        self, replica: Replica, group: Group, *, to: Sequence[int] = (), source: int | None = None
    ) -> None:
        """Of one that has fed the members `to`, or of one that was fed by `source`."""
        self._replica, self._group = replica, group
        self._to, self._source = to, source
        self._holds: bool | None = None  # None: a member was lost
        self._thread = threading.Thread(target=self._work, name="ones-proof", daemon=True)
        self._thread.start()

    def wait(self) -> bool | None:
        """Until then the parameters may not change. True: equal."""
        self._thread.join()
        return self._holds

    def _work(self) -> None:
        with contextlib.suppress(GroupLostError):
            mine = self._replica.digest()
            if self._source is None:
                word = torch.tensor([mine], dtype=torch.int64)
                self._group.keep([self._group.send(word, to, _TAG) for to in self._to], word)
                self._holds = True
            else:
                theirs = torch.zeros(1, dtype=torch.int64)
                wait_all([self._group.receive(theirs, self._source, _TAG)])
                self._holds = int(theirs) == mine
