"""Every launch that is not forgotten: its state and its node."""

from __future__ import annotations

import threading
from dataclasses import replace

from ones.exec import Exit
from ones.launchers.api import Exited, Launch, LaunchedProcess, Listener, Started


class LaunchTable:
    """Calls `notify` once for each start and each exit. Any thread may add and read; the rest is
    for the launcher's own thread.

    An exit is final: later messages about that launch are ignored.
    """

    def __init__(self, notify: Listener) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._processes: dict[str, LaunchedProcess] = {}
        self._nodes: dict[str, str] = {}  # launch -> node, once it has one

    def all(self) -> dict[str, LaunchedProcess]:
        with self._lock:
            return dict(self._processes)

    def living(self, id: str) -> LaunchedProcess | None:
        """None: it has exited, or is not known."""
        with self._lock:
            process = self._processes.get(id)
        return process if process is not None and process.alive else None

    def job_of(self, id: str) -> str | None:
        """None: the launch is not known."""
        with self._lock:
            process = self._processes.get(id)
        return process.job if process is not None else None

    def node_of(self, id: str) -> str:
        """Empty: none yet."""
        with self._lock:
            return self._nodes.get(id, "")

    def nodes_of(self, job: str) -> set[str]:
        """With an empty name for launches that have none."""
        with self._lock:
            return {self._nodes.get(p.id, "") for p in self._processes.values() if p.job == job}

    def living_on(self, node: str) -> list[LaunchedProcess]:
        with self._lock:
            return [p for p in self._processes.values() if p.alive and self._is_on(p.id, node)]

    def _is_on(self, id: str, node: str) -> bool:
        return self._nodes.get(id, "") == node

    def add(self, launch: Launch) -> bool:
        """False: it was known before."""
        with self._lock:
            if launch.id in self._processes:
                return False
            self._processes[launch.id] = LaunchedProcess(
                id=launch.id, job=launch.job, slots=launch.slots
            )
            return True

    def restore(self, process: LaunchedProcess, node: str) -> None:
        """A launch of an earlier controller: `notify` is not called."""
        with self._lock:
            self._processes[process.id] = process
            self._nodes[process.id] = node

    def place(self, id: str, node: str) -> None:
        with self._lock:
            if id in self._processes:
                self._nodes[id] = node

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
        """Drop all of its launches, or those on one node; an empty name: those without a node."""
        with self._lock:
            for id in [p.id for p in self._processes.values() if p.job == job]:
                if node is None or self._is_on(id, node):
                    del self._processes[id]
                    self._nodes.pop(id, None)
