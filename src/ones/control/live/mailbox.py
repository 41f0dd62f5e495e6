"""Orders that wait for the next call of a worker: from the scheduler's thread to the server's."""

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
        """The newest order replaces an older one: only the last word counts."""
        with self._lock:
            self._orders[launch] = order
            wake = self._waiting.pop(launch, None)
        if wake is not None:
            wake()

    def unseen(self, launch: str, seen: int) -> Order | None:
        """What this worker has not got yet."""
        with self._lock:
            order = self._orders.get(launch)
        return order if order is not None and order.plan > seen else None

    def wait(self, launch: str, seen: int, wake: Callable[[], object]) -> Order | None:
        """The order, if there is one; else `wake` is called when the next one comes."""
        with self._lock:
            order = self._orders.get(launch)
            if order is None or order.plan <= seen:
                self._waiting[launch] = wake
                return None
            return order

    def nudge(self, launch: str) -> None:
        """Whoever waits gets an answer now, order or not."""
        with self._lock:
            wake = self._waiting.pop(launch, None)
        if wake is not None:
            wake()

    def drop(self, launch: str) -> None:
        """The worker is gone."""
        with self._lock:
            self._orders.pop(launch, None)
            wake = self._waiting.pop(launch, None)
        if wake is not None:
            wake()
