"""The launches of one node, as the driver knows them from the node's agent.

Starts, output and exits go to the mirror on disk and to the launcher. An exit is reported when all
output has been copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ones.exec.records import Exit, Status, parse_record
from ones.exec.run_dir import boot_id
from ones.launchers.ray.mirror import Mirror


class _Tracked:
    def __init__(self, job: str, copied: int) -> None:
        self.job, self.copied = job, copied
        self.pid: int | None = None
        self.exit: dict[str, Any] | None = None


class LaunchTracker:
    def __init__(self, node: str, mirror: Mirror, send: Callable[[dict[str, Any]], None]) -> None:
        self._node, self._mirror, self._send = node, mirror, send
        self._launches: dict[str, _Tracked] = {}
        self._over: set[str] = set()

    def __bool__(self) -> bool:
        """Whether a launch has not ended, or its output is not complete."""
        return bool(self._launches)

    @property
    def copied(self) -> dict[str, int]:
        """Bytes of output copied so far, by launch."""
        return {id: launch.copied for id, launch in self._launches.items()}

    @property
    def has_exits(self) -> bool:
        """Whether a launch has exited and its last output is not copied."""
        return any(launch.exit is not None for launch in self._launches.values())

    def update(self, answer: dict[str, Any], copied: dict[str, int]) -> None:
        """Handles the answer to a poll; `copied`: the offsets sent with that poll."""
        for id, (job, pid, exit) in answer["launches"].items():
            self._update_launch(id, job, pid, exit)
        for id, kept in answer["reports"].items():
            if id in self._launches:
                self._mirror.write_reports(self._launches[id].job, self._node, id, kept)
        for id, (offset, data) in answer["output"].items():
            launch = self._launches.get(id)
            if launch is not None:
                self._mirror.append(launch.job, self._node, id, offset, data)
                launch.copied = offset + len(data)
        for id in [id for id in copied if id in self._launches]:
            if answer["is_all"] and id not in answer["output"]:
                self._report_exit(id)

    def _update_launch(
        self, id: str, job: str, pid: int | None, exit: dict[str, Any] | None
    ) -> None:
        if id in self._over:
            return
        launch = self._launches.get(id)
        if launch is None:
            if self._mirror.is_over(job, self._node, id):
                self._over.add(id)
                return
            launch = _Tracked(job, self._mirror.end(job, self._node, id))
            self._launches[id] = launch
        if pid is not None and launch.pid is None:
            launch.pid = pid
            status = Status(pid=pid, born=0, started_at=time.time(), boot_id=boot_id())
            self._mirror.started(job, self._node, id, status)
            self._send({"event": "started", "id": id, "pid": pid})
        launch.exit = exit

    def _report_exit(self, id: str) -> None:
        """Reports the exit, if there is one. All output of the launch is copied."""
        launch = self._launches[id]
        if launch.exit is None:
            return
        del self._launches[id]
        self._over.add(id)
        self._mirror.exited(launch.job, self._node, id, parse_record(Exit, launch.exit))
        self._send({"event": "exited", "id": id, "exit": launch.exit})
