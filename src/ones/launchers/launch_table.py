"""The table of all launches of jobs that are not forgotten."""

from __future__ import annotations

import threading
from dataclasses import replace

from ones.exec import Exit, Launch
from ones.launchers.api import Exited, LaunchedProcess, Listener, Started


class LaunchTable:
    """Calls `notify` once for each start and each exit.

    Any thread may add and read; the other methods are for the launcher's own thread. An exit is
    final: later messages about that launch are ignored.
    """

    def __init__(self, notify: Listener) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._processes: dict[str, LaunchedProcess] = {}

    def all(self) -> dict[str, LaunchedProcess]:
        with self._lock:
            return dict(self._processes)

    def get(self, id: str) -> LaunchedProcess | None:
        with self._lock:
            return self._processes.get(id)

    def living(self, id: str) -> LaunchedProcess | None:
        """The launch; None if it has exited or is not known."""
        process = self.get(id)
        return process if process is not None and process.alive else None

    def nodes_of(self, job: str) -> set[str]:
        """The nodes of a job's launches; an empty name for launches without a node."""
        return {process.node for process in self.all().values() if process.job == job}

    def living_on(self, node: str) -> list[LaunchedProcess]:
        return [p for p in self.all().values() if p.alive and p.node == node]

    def add(self, launch: Launch) -> bool:
        """Adds a launch; False if it was known before."""
        with self._lock:
            if launch.id in self._processes:
                return False
            self._processes[launch.id] = LaunchedProcess(
                id=launch.id, job=launch.job, slots=launch.slots
            )
            return True

    def restore(self, process: LaunchedProcess) -> None:
        """Adds a launch of an earlier controller: `notify` is not called."""
        with self._lock:
            self._processes[process.id] = process

    def place(self, id: str, node: str) -> None:
        with self._lock:
            if (known := self._processes.get(id)) is not None:
                self._processes[id] = replace(known, node=node)

    def started(self, id: str, pid: int) -> None:
        with self._lock:
            known = self._processes.get(id)
            if known is None or not known.alive or known.pid == pid:
                return
            self._processes[id] = replace(known, pid=pid)
        self._notify(Started(id, pid))

    def exited(self, id: str, exit: Exit) -> None:
        with self._lock:
            known = self._processes.get(id)
            if known is None or not known.alive:
                return
            self._processes[id] = replace(known, exit=exit)
        self._notify(Exited(id, exit))

    def forget(self, job: str, node: str | None = None) -> None:
        """Drops a job's launches: all, those on one node, or (`""`) those without a node."""
        with self._lock:
            self._processes = {
                id: process
                for id, process in self._processes.items()
                if process.job != job or node not in (None, process.node)
            }
