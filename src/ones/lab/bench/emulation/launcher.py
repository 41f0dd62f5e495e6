"""A launcher that starts no process: another process plays the workers.

What is to be started goes to standard output, one JSON line for each launch. The ids of
launches that have ended come from standard input.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time

from ones.exec import Exit
from ones.exec.output import Chunk
from ones.launchers import Exited, Launch, LaunchedProcess, Slot, Started
from ones.launchers.api import Listener

NODE = "emulated"
#: time from a launch to its worker; the controller knows a worker only after `launch` has returned
START_SECONDS = 0.05


class PipeLauncher:
    def __init__(self, slots: int, per_node: int | None = None) -> None:
        size = per_node or slots
        several = slots > size
        self._slots = [
            Slot(node=f"{NODE}{i // size}" if several else NODE, index=i % size)
            for i in range(slots)
        ]
        self._processes: dict[str, LaunchedProcess] = {}
        self._lock = threading.Lock()
        self._starting: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()

    def open(self, listener: Listener) -> None:
        self._listener = listener
        for work in (self._read_exits, self._write_starts):
            threading.Thread(target=work, daemon=True).start()

    def _read_exits(self) -> None:
        for line in sys.stdin:
            self._exited(line.strip())

    def _write_starts(self) -> None:
        while True:
            due, line = self._starting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            print(line, flush=True)

    def _exited(self, id: str) -> None:
        exit = Exit(code=0, at=time.time(), cause="exited")
        with self._lock:
            known = self._processes.get(id)
            if known is None or known.exit is not None:
                return
            self._processes[id] = LaunchedProcess(
                id=id, job=known.job, slots=known.slots, pid=known.pid, exit=exit
            )
        self._listener(Exited(id, exit))

    def slots(self) -> list[Slot]:
        return self._slots

    def launch(self, launch: Launch) -> None:
        with self._lock:
            process = LaunchedProcess(id=launch.id, job=launch.job, slots=launch.slots, pid=1)
            self._processes[launch.id] = process
        line = json.dumps({"id": launch.id, "env": dict(launch.env)})
        self._starting.put((time.monotonic() + START_SECONDS, line))
        self._listener(Started(launch.id, 1))

    def stop(self, id: str, grace_seconds: float) -> None:
        self._exited(id)

    def running(self) -> dict[str, LaunchedProcess]:
        with self._lock:
            return dict(self._processes)

    def history(self, job: str) -> list[LaunchedProcess]:
        return [process for process in self.running().values() if process.job == job]

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return Chunk(b"", 0, 0)

    def forget(self, job: str) -> None:
        with self._lock:
            self._processes = {k: p for k, p in self._processes.items() if p.job != job}

    def close(self, *, kill: bool) -> None:
        pass
