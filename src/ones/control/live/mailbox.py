"""Orders that wait for a worker's next request: written by the scheduler's thread, read by the
server's."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ones.wire.messages import Order


class Mailbox:
    def __init__(self) -> None:
        self._orders: dict[str, Order] = {}
        self._waiting: dict[str, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def put(self, launch: str, order: Order) -> None:
        """Store an order for a worker; it replaces an older one, because only the newest counts."""
        with self._lock:
            self._orders[launch] = order
            wake = self._waiting.pop(launch, None)
        if wake is not None:
            wake()

    def unseen(self, launch: str, seen: int) -> Order | None:
        """The stored order, if it is newer than plan `seen` of the worker."""
        with self._lock:
            order = self._orders.get(launch)
        return order if order is not None and order.plan > seen else None

    def wait(self, launch: str, seen: int, wake: Callable[[], object]) -> Order | None:
        """The unseen order, if there is one; else `wake` is called when the next one comes."""
        with self._lock:
            order = self._orders.get(launch)
            if order is None or order.plan <= seen:
                self._waiting[launch] = wake
                return None
            return order

    def nudge(self, launch: str) -> None:
        """Answer the waiting request of a worker now, with or without an order."""
        with self._lock:
            wake = self._waiting.pop(launch, None)
        if wake is not None:
            wake()

    def drop(self, launch: str) -> None:
        """Remove the orders of a worker that is gone, and answer its waiting request."""
        with self._lock:
            self._orders.pop(launch, None)
            wake = self._waiting.pop(launch, None)
        if wake is not None:
            wake()
