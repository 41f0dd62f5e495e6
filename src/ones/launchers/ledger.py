"""Every launch that is not forgotten, how it stands, and on which node it is."""

from __future__ import annotations

import threading
from dataclasses import replace

from ones.exec import Exit
from ones.launchers.api import Exited, Launch, Listener, Process, Started


class Ledger:
    """`tell` hears of each start and each exit once. Anybody may add and read; the rest is for the
    launcher's own thread.

    An exit is the last word on a launch: whatever is said of it later is not news.
    """

    def __init__(self, tell: Listener) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._processes: dict[str, Process] = {}
        self._nodes: dict[str, str] = {}  # launch -> node, once it has one

    # what is known

    def all(self) -> dict[str, Process]:
        with self._lock:
            return dict(self._processes)

    def living(self, id: str) -> Process | None:
        """None: it has exited, or nobody knows of it."""
        with self._lock:
            process = self._processes.get(id)
        return process if process is not None and process.alive else None

    def job_of(self, id: str) -> str | None:
        """None: nobody knows of it."""
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

    def living_on(self, node: str) -> list[Process]:
        with self._lock:
            return [p for p in self._processes.values() if p.alive and self._is_on(p.id, node)]

    def _is_on(self, id: str, node: str) -> bool:
        return self._nodes.get(id, "") == node

    # what happens

    def add(self, launch: Launch) -> bool:
        """False: it was here before."""
        with self._lock:
            if launch.id in self._processes:
                return False
            self._processes[launch.id] = Process(id=launch.id, job=launch.job, slots=launch.slots)
            return True

    def find(self, process: Process, node: str) -> None:
        """It is there from an earlier time: nobody is told."""
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
        self._tell(Started(id, pid))

    def exited(self, id: str, exit: Exit) -> None:
        with self._lock:
            known = self._processes.get(id)
            if known is None or not known.alive:
                return
            self._processes[id] = replace(known, exit=exit)
        self._tell(Exited(id, exit))

    def forget(self, job: str, node: str | None = None) -> None:
        """All of its launches, or those on one node; an empty name: those that have none."""
        with self._lock:
            for id in [p.id for p in self._processes.values() if p.job == job]:
                if node is None or self._is_on(id, node):
                    del self._processes[id]
                    self._nodes.pop(id, None)
