"""The clients of all ones-exec of a launcher, with one selector. Runs in the launcher's thread."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from pathlib import Path

from ones.launchers.supervisor_client import SupervisorClient, SupervisorState
from ones.launchers.work_queue import HasFile

RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class SupervisorClients:
    """By run directory. `waker` ends a wait early."""

    def __init__(self, waker: HasFile) -> None:
        self._clients: dict[Path, SupervisorClient] = {}
        self._selector = selectors.DefaultSelector()
        self._registered: dict[SupervisorClient, tuple[int, int]] = {}  # its file and events
        self._selector.register(waker, selectors.EVENT_READ, None)

    def get(self, run_dir: Path) -> SupervisorClient | None:
        return self._clients.get(run_dir)

    def add(self, client: SupervisorClient) -> None:
        self._clients[client.run_dir] = client

    def of_job(self, job: Path) -> list[SupervisorClient]:
        """Those with run directories below this one."""
        return [client for client in self._clients.values() if client.run_dir.parent == job]

    @property
    def are_closing(self) -> bool:
        return any(client.closing for client in self._clients.values())

    def close_all(self, grace: float) -> None:
        for client in list(self._clients.values()):
            self.guarded(client, lambda client: client.close(grace))

    # one turn

    def wait(self, most: float) -> None:
        """Serve clients that have input. Returns after `most` seconds, or when a retry is due."""
        self._register_all()
        for key, events in self._selector.select(self._seconds_to_wait(most)):
            if key.data is None:
                continue
            if events & selectors.EVENT_WRITE:
                self.guarded(key.data, SupervisorClient.flush)
            if events & selectors.EVENT_READ:
                self._unregister(key.data)  # its file may be another one afterwards
                self.guarded(key.data, SupervisorClient.serve)

    def retry(self) -> None:
        now = time.monotonic()
        for client in list(self._clients.values()):
            if client.retry_at is not None and client.retry_at <= now:
                self.guarded(client, SupervisorClient.retry)

    def take_ended(self) -> list[SupervisorClient]:
        """Removes and returns the clients whose job is over and whose ones-exec is gone."""
        ended = [
            client
            for client in self._clients.values()
            if client.closing and client.state is SupervisorState.ABSENT and not client.open
        ]
        for client in ended:
            self._unregister(client)
            del self._clients[client.run_dir]
        return ended

    def release_all(self) -> None:
        """Disconnect. Every ones-exec goes on."""
        for client in self._clients.values():
            self._unregister(client)
            self.guarded(client, SupervisorClient.release)
        self._selector.close()

    def guarded(self, client: SupervisorClient, action: Callable[[SupervisorClient], None]) -> None:
        """Whatever the system refuses, or an ones-exec or run directory contains: the connection is
        closed and tried again."""
        try:
            action(client)
        except Exception as problem:
            if not isinstance(problem, OSError):
                log.exception("invalid data from ones-exec", extra={"path": str(client.run_dir)})
            client.disconnect()
            client.retry_at = time.monotonic() + RETRY_SECONDS

    def _seconds_to_wait(self, most: float) -> float:
        times = [c.retry_at for c in self._clients.values() if c.retry_at is not None]
        return min(most, max(0.0, min(times) - time.monotonic())) if times else most

    def _register_all(self) -> None:
        for client in self._clients.values():
            if not client.has_file:
                self._unregister(client)
                continue
            events = selectors.EVENT_READ
            if client.wants_to_write:
                events |= selectors.EVENT_WRITE
            wanted = (client.fileno(), events)
            if self._registered.get(client) != wanted:
                self._unregister(client)
                self._selector.register(wanted[0], events, client)
                self._registered[client] = wanted

    def _unregister(self, client: SupervisorClient) -> None:
        registered = self._registered.pop(client, None)
        if registered is not None:
            self._selector.unregister(registered[0])
