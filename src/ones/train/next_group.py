"""The group that a switch order asks for: connected in the background while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from ones.train import logs
from ones.train.layout import GroupLayout
from ones.train.process_group import ProcessGroup
from ones.train.rendezvous import Rendezvous
from ones.train.replica import receivers_of

#: what a member can do for the joining workers of its next group
NO_STATE, HAS_STATE, SENDS_IN_BACKGROUND = 0, 1, 2


class PreparedGroup:
    """The next group of a worker, while it connects and once it is ready."""

    def __init__(self, layout: GroupLayout) -> None:
        self.layout = layout
        self.group: ProcessGroup | None = None
        self.ready = False
        self.withdrawn = False
        self.connect_seconds = 0.0
        self.has_state = [True] * len(layout.members)  # by rank
        self.in_background = False  # joining workers receive the state while training goes on
        self.receivers: list[int] = []  # ranks that receive it from this worker

    def set_connected(self, group: ProcessGroup) -> None:
        self.group = group
        self.has_state = [role != NO_STATE for role in group.state_roles]
        can_send = all(role == SENDS_IN_BACKGROUND for role in group.state_roles if role)
        self.in_background = can_send and any(self.has_state) and not all(self.has_state)
        if self.in_background and self.has_state[group.rank]:
            self.receivers = receivers_of(self.has_state, group.rank)


class NextGroup:
    """Holds at most one prepared group; a newer order replaces an older one.

    Orders arrive in the controller client's thread and groups connect in a thread of their own.
    The training thread claims a group that is ready: from then on no order can withdraw it.
    """

    def __init__(
        self,
        worker: str,
        rendezvous: Rendezvous,
        device: torch.device,
        *,
        state_role: Callable[[], int],
        on_failed: Callable[[GroupLayout, str], None],
    ) -> None:
        self._worker, self._rendezvous, self._device = worker, rendezvous, device
        self._state_role, self._on_failed = state_role, on_failed
        self.changed = threading.Condition()
        self._prepared: PreparedGroup | None = None
        self._claimed: PreparedGroup | None = None
        self._current: GroupLayout | None = None
        self._ordered: dict[int, GroupLayout] = {}

    @property
    def ready(self) -> PreparedGroup | None:
        prepared = self._prepared
        return prepared if prepared is not None and prepared.ready else None

    @property
    def is_ordered(self) -> bool:
        return self._prepared is not None

    def ordered_layout(self, plan: int) -> GroupLayout | None:
        return self._ordered.get(plan)

    # orders

    def prepare(self, layout: GroupLayout) -> None:
        if self._current is not None and layout.plan <= self._current.plan:
            return
        self.discard()
        self._rendezvous.expect(layout.workers)
        with self.changed:
            self._ordered[layout.plan] = layout
            for old in sorted(self._ordered)[:-4]:
                del self._ordered[old]
            self._prepared = prepared = PreparedGroup(layout)
        threading.Thread(
            target=self._connect, args=(prepared,), name="ones-switch", daemon=True
        ).start()

    def withdraw(self, plan: int) -> None:
        with self.changed:
            prepared, claimed = self._prepared, self._claimed
            if claimed is not None and claimed.layout.plan == plan:
                claimed.withdrawn = True  # no effect if all members have agreed on it by now
        if prepared is not None and prepared.layout.plan == plan:
            self.discard()

    def give_up(self, prepared: PreparedGroup, reason: str) -> None:
        if prepared is self._prepared:
            self.discard()
            self._on_failed(prepared.layout, reason)

    def discard(self) -> GroupLayout | None:
        """Drops the prepared group and returns its layout."""
        with self.changed:
            prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        prepared.withdrawn = True
        if prepared.group is not None:
            prepared.group.close()
        return prepared.layout

    # the training thread

    def claim(self) -> PreparedGroup | None:
        with self.changed:
            prepared = self.ready
            if prepared is None:
                return None
            self._claimed, self._prepared = prepared, None
            if prepared.group is not None or not self._needs_connection(prepared.layout):
                return prepared
            self._claimed = None  # it was to continue with a group that is closed by now
        self._on_failed(prepared.layout, "the current group, which was to continue, is lost")
        return None

    def release(self, prepared: PreparedGroup) -> None:
        """Gives a claimed group back: the switch cannot happen in this step."""
        with self.changed:
            self._claimed = None
            if self._prepared is None and not prepared.withdrawn:
                self._prepared = prepared
            elif prepared.group is not None:
                prepared.group.close()
            self.changed.notify_all()

    def set_current(self, layout: GroupLayout) -> None:
        with self.changed:
            self._current, self._claimed = layout, None
            self.changed.notify_all()

    # the connecting thread

    def _connect(self, prepared: PreparedGroup) -> None:
        with self.changed:
            while self._claimed is not None:  # the current layout is about to change
                self.changed.wait()
            needs_connection = self._needs_connection(prepared.layout)
        started = time.perf_counter()
        try:
            if needs_connection:
                group = self._rendezvous.connect(
                    prepared.layout,
                    self._device,
                    state_role=self._state_role(),
                    is_withdrawn=lambda: prepared.withdrawn,
                )
                prepared.set_connected(group)
        except Exception as error:  # of the device's library: any; it fails the plan only
            if not prepared.withdrawn:
                self.discard()
                self._on_failed(prepared.layout, logs.describe(error))
            return
        prepared.connect_seconds = time.perf_counter() - started
        with self.changed:
            if prepared.withdrawn:
                if prepared.group is not None:
                    prepared.group.close()
                return
            prepared.ready = True
            self.changed.notify_all()

    def _needs_connection(self, layout: GroupLayout) -> bool:
        """False for a leaving worker, a single worker and workers that are connected already."""
        if self._worker not in layout or len(layout.members) == 1:
            return False
        return self._current is None or self._current.workers != layout.workers
