"""The clients of all ones-exec of a launcher. Runs in the launcher's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ones.launchers.supervisor_client import SupervisorClient, SupervisorState
from ones.launchers.work_queue import HasFile, wait_for_input

RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class SupervisorClients:
    """The clients, by run directory. `waker` ends a wait early."""

    def __init__(self, waker: HasFile) -> None:
        self._clients: dict[Path, SupervisorClient] = {}
        self._waker = waker

    def get(self, run_dir: Path) -> SupervisorClient | None:
        return self._clients.get(run_dir)

    def add(self, client: SupervisorClient) -> None:
        self._clients[client.run_dir] = client

    def of_job(self, job: Path) -> list[SupervisorClient]:
        """The clients with run directories below this one."""
        return [client for client in self._clients.values() if client.run_dir.parent == job]

    @property
    def are_closing(self) -> bool:
        return any(client.closing for client in self._clients.values())

    def close_all(self, grace: float) -> None:
        for client in list(self._clients.values()):
            self.guarded(client, lambda client: client.close(grace))

    # one turn

    def wait(self, most: float) -> None:
        """Serves clients that have input. Returns after `most` seconds, or when a retry is due."""
        with_files = (client for client in self._clients.values() if client.has_file)
        for ready in wait_for_input([self._waker, *with_files], self._seconds_to_wait(most)):
            if isinstance(ready, SupervisorClient):
                self.guarded(ready, SupervisorClient.serve)

    def retry(self) -> None:
        now = time.monotonic()
        for client in list(self._clients.values()):
            if client.retry_at is not None and client.retry_at <= now:
                self.guarded(client, SupervisorClient.retry)
            elif client.overdue_at is not None and client.overdue_at <= now:
                self.guarded(client, SupervisorClient.end_overdue)

    def take_ended(self) -> list[SupervisorClient]:
        """Removes and returns the clients of ended jobs that have no ones-exec any more."""
        ended = [
            client
            for client in self._clients.values()
            if client.closing and client.state is SupervisorState.ABSENT and not client.open
        ]
        for client in ended:
            del self._clients[client.run_dir]
        return ended

    def release_all(self) -> None:
        """Disconnects. Every ones-exec goes on."""
        for client in self._clients.values():
            self.guarded(client, SupervisorClient.release)

    def guarded(self, client: SupervisorClient, action: Callable[[SupervisorClient], None]) -> None:
        """Calls `action`. If it fails, whatever the cause, only this client reconnects later."""
        try:
            action(client)
        except Exception as problem:
            if not isinstance(problem, OSError):
                log.exception("invalid data from ones-exec", extra={"path": str(client.run_dir)})
            client.disconnect()
            client.retry_at = time.monotonic() + RETRY_SECONDS

    def _seconds_to_wait(self, most: float) -> float:
        found = [(c.retry_at, c.overdue_at) for c in self._clients.values()]
        times = [at for pair in found for at in pair if at is not None]
        return min(most, max(0.0, min(times) - time.monotonic())) if times else most
