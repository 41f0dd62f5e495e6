"""The launches of one node as the bridge follows them: what its manager tells of them goes into the
mirror and to the launcher. An exit is told when all output is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ones.exec import Status
from ones.exec.records import boot_id, parse_exit
from ones.launchers.ray.mirror import Mirror


class _Launch:
    def __init__(self, job: str, have: int) -> None:
        self.job, self.have = job, have
        self.pid: int | None = None
        self.exit: dict[str, Any] | None = None


class Following:
    def __init__(self, node: str, mirror: Mirror, say: Callable[[dict[str, Any]], None]) -> None:
        self._node, self._mirror, self._say = node, mirror, say
        self._launches: dict[str, _Launch] = {}
        self._over: set[str] = set()

    def __bool__(self) -> bool:
        """Something is not over, or its last words are not here."""
        return bool(self._launches)

    @property
    def have(self) -> dict[str, int]:
        """How much output of each launch is here."""
        return {id: launch.have for id, launch in self._launches.items()}

    @property
    def in_a_hurry(self) -> bool:
        """Somebody waits for the last words of one that has exited."""
        return any(launch.exit is not None for launch in self._launches.values())

    def hear(self, answer: dict[str, Any], had: dict[str, int]) -> None:
        """`had`: what the manager was told that is here."""
        for id, (job, pid, exit) in answer["launches"].items():
            self._hear_of(id, job, pid, exit)
        for id, kept in answer.get("reports", {}).items():  # managers of earlier versions say none
            if id in self._launches:
                self._mirror.take_reports(self._launches[id].job, self._node, id, kept)
        for id, (offset, data) in answer["output"].items():
            launch = self._launches.get(id)
            if launch is not None:
                self._mirror.take(launch.job, self._node, id, offset, data)
                launch.have = offset + len(data)
        for id in [id for id in had if id in self._launches]:
            if answer["is_all"] and id not in answer["output"]:
                self._conclude(id)

    def _hear_of(self, id: str, job: str, pid: int | None, exit: dict[str, Any] | None) -> None:
        if id in self._over:
            return
        launch = self._launches.get(id)
        if launch is None:
            if self._mirror.is_over(job, self._node, id):
                self._over.add(id)
                return
            launch = _Launch(job, self._mirror.end(job, self._node, id))
            self._launches[id] = launch
        if pid is not None and launch.pid is None:
            launch.pid = pid
            status = Status(pid=pid, born=0, started_at=time.time(), boot_id=boot_id())
            self._mirror.started(job, self._node, id, status)
            self._say({"event": "started", "id": id, "pid": pid})
        launch.exit = exit

    def _conclude(self, id: str) -> None:
        """All its output is here: if it has exited, that is told."""
        launch = self._launches[id]
        if launch.exit is None:
            return
        del self._launches[id]
        self._over.add(id)
        self._mirror.exited(launch.job, self._node, id, parse_exit(launch.exit))
        self._say({"event": "exited", "id": id, "exit": launch.exit})
