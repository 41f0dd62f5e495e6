"""The configuration that is on its way: connected in the background while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from ones.train.formation import Formation
from ones.train.group import Group, GroupLostError
from ones.train.meeting import Meeting
from ones.train.replica import fed_by


class Next:
    def __init__(self, formation: Formation) -> None:
        self.formation = formation
        self.group: Group | None = None
        self.ready = False
        self.withdrawn = False
        self.connect_seconds = 0.0
        self.trained = [True] * len(formation.members)  # by rank: who brings the state
        self.is_fed = False  # newcomers get it while training goes on
        self.receivers: list[int] = []  # ... from this worker

    def introduced(self, group: Group) -> None:
        """Each member has said what it offers: nothing, its state, or to feed others with it."""
        self.group = group
        self.trained = [offer > 0 for offer in group.offers]
        feed = all(offer == 2 for offer in group.offers if offer)
        self.is_fed = feed and any(self.trained) and not all(self.trained)
        if self.is_fed and self.trained[group.rank]:
            self.receivers = fed_by(self.trained, group.rank)


class Upcoming:
    """At most one; a newer order takes the place of an older one.

    Orders arrive in the agent's thread, connections in one of their own, and the training
    thread claims what is ready: from then on no order can take it away.
    """

    def __init__(
        self,
        me: str,
        meeting: Meeting,
        device: torch.device,
        *,
        offer: Callable[[], int],
        on_failed: Callable[[Formation, str], None],
    ) -> None:
        self._me, self._meeting, self._device = me, meeting, device
        self._offer, self._on_failed = offer, on_failed
        self.changed = threading.Condition()
        self._next: Next | None = None
        self._claimed: Next | None = None
        self._present: Formation | None = None
        self._known: dict[int, Formation] = {}

    @property
    def plan(self) -> int | None:
        """Of the one that is ready, if there is one."""
        nxt = self.ready
        return None if nxt is None else nxt.formation.plan

    @property
    def ready(self) -> Next | None:
        nxt = self._next
        return nxt if nxt is not None and nxt.ready else None

    @property
    def is_there(self) -> bool:
        return self._next is not None

    def known(self, plan: int) -> Formation | None:
        """As it was ordered."""
        return self._known.get(plan)

    # orders

    def prepare(self, formation: Formation) -> None:
        if self._present is not None and formation.plan <= self._present.plan:
            return
        self.drop()
        self._meeting.expect(formation.workers)
        with self.changed:
            self._known[formation.plan] = formation
            for old in sorted(self._known)[:-4]:
                del self._known[old]
            self._next = nxt = Next(formation)
        threading.Thread(target=self._connect, args=(nxt,), name="ones-switch", daemon=True).start()

    def withdraw(self, plan: int) -> None:
        with self.changed:
            nxt, claimed = self._next, self._claimed
            if claimed is not None and claimed.formation.plan == plan:
                claimed.withdrawn = True  # unless all have agreed on it by now
        if nxt is not None and nxt.formation.plan == plan:
            self.drop()

    def fail(self, nxt: Next, why: str) -> None:
        """It will not come together."""
        if nxt is self._next:
            self.drop()
            self._on_failed(nxt.formation, why)

    def drop(self) -> Formation | None:
        with self.changed:
            nxt, self._next = self._next, None
        if nxt is None:
            return None
        nxt.withdrawn = True
        if nxt.group is not None:
            nxt.group.close()
        return nxt.formation

    # the training thread

    def claim(self) -> Next | None:
        with self.changed:
            nxt = self._next
            if nxt is None or not nxt.ready:
                return None
            self._claimed, self._next = nxt, None
            if nxt.group is not None or not self._needs_group(nxt.formation):
                return nxt
            self._claimed = None  # it was to go on with a group that is gone by now
        self._on_failed(nxt.formation, "the workers it was made for are not together any more")
        return None

    def unclaim(self, nxt: Next | None) -> None:
        """It cannot be now. Perhaps after the next step."""
        with self.changed:
            self._claimed = None
            if nxt is not None and self._next is None and not nxt.withdrawn:
                self._next = nxt
            elif nxt is not None and nxt.group is not None:
                nxt.group.close()
            self.changed.notify_all()

    def now_in_force(self, formation: Formation) -> None:
        with self.changed:
            self._present, self._claimed = formation, None
            self.changed.notify_all()

    # in a thread of its own

    def _connect(self, nxt: Next) -> None:
        with self.changed:
            while self._claimed is not None:  # what is in force is about to change
                self.changed.wait()
            needs_group = self._needs_group(nxt.formation)
        started = time.perf_counter()
        try:
            if needs_group:
                group = self._meeting.connect(
                    nxt.formation,
                    self._device,
                    offer=self._offer(),
                    given_up=lambda: nxt.withdrawn,
                )
                nxt.introduced(group)
        except (GroupLostError, OSError) as problem:
            if not nxt.withdrawn:
                self.drop()
                self._on_failed(nxt.formation, str(problem))
            return
        nxt.connect_seconds = time.perf_counter() - started
        with self.changed:
            if nxt.withdrawn:
                if nxt.group is not None:
                    nxt.group.close()
                return
            nxt.ready = True
            self.changed.notify_all()

    def _needs_group(self, formation: Formation) -> bool:
        """Not to leave, not to work alone, and not with those who are together already."""
        if self._me not in formation or len(formation.members) == 1:
            return False
        return self._present is None or self._present.workers != formation.workers
