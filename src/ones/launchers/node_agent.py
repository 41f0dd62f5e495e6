"""Base class of the node agents of Ray and Slurm, and the messages that both understand.

Requests to an agent, over its connection (Slurm) or as the argument of an actor call (Ray):

    {"do": "launch", "launch": {...}}       {"do": "stop", "id": "...", "grace": 5.0}
    {"do": "prepare", "launch": {...}}      {"do": "forget", "job": "..."}

Events that an agent sends to the controller:

    {"event": "started", "id": "...", "pid": 7}     {"event": "exited", "id": "...", "exit": {...}}
    {"event": "sampled", "samples": [...]}          see `ones.wire.samples`
"""

from __future__ import annotations

from typing import Any

from ones.exec.records import Launch, parse_record
from ones.launchers.api import LaunchedProcess
from ones.launchers.local import LocalLauncher


class NodeAgent:
    """Holds a node's slots and starts workers there with a LocalLauncher."""

    def __init__(self, launcher: LocalLauncher) -> None:
        self._launcher = launcher

    def handle(self, request: dict[str, Any]) -> None:
        match request["do"]:
            case "launch":
                self._launcher.launch(parse_record(Launch, request["launch"]))
            case "prepare":
                self._launcher.prepare(parse_record(Launch, request["launch"]))
            case "stop":
                self._launcher.stop(request["id"], request["grace"])
            case "forget":
                self._launcher.forget(request["job"])
            case other:
                raise ValueError(f"unknown request {other!r}")

    def alive(self) -> list[LaunchedProcess]:
        return [process for process in self._launcher.running().values() if process.alive]

    def stop_all(self, grace: float) -> None:
        for process in self.alive():
            self._launcher.stop(process.id, grace)
