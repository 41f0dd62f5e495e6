"""Requests that an agent has not acknowledged; sent again when it reconnects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from ones.exec import Launch
from ones.launchers.slurm.nodes import SlurmNode


class PendingRequests:
    def __init__(self) -> None:
        self._launches: dict[str, Launch] = {}
        self._stops: dict[str, float] = {}  # launch -> grace
        self._forgets: dict[str, set[str]] = {}  # node -> jobs

    # sent

    def launch(self, node: SlurmNode, launch: Launch) -> None:
        self._launches[launch.id] = launch
        node.send({"do": "launch", "launch": asdict(launch)})

    def stop(self, node: SlurmNode, id: str, grace: float) -> None:
        self._stops[id] = grace
        node.send({"do": "stop", "id": id, "grace": grace})

    def forget(self, node: SlurmNode, job: str) -> None:
        self._forgets.setdefault(node.name, set()).add(job)
        node.send({"do": "forget", "job": job})

    # acknowledged

    def arrived(self, id: str) -> None:
        """Drops a launch that an agent has acknowledged, or that has exited."""
        self._launches.pop(id, None)

    def exited(self, id: str) -> None:
        self._stops.pop(id, None)

    def forgotten(self, node: str, job: str) -> None:
        self._forgets.get(node, set()).discard(job)

    def take_forgets(self, node: str) -> set[str]:
        """Removes and returns the forgets of a node that is lost."""
        return self._forgets.pop(node, set())

    # sent again

    def resend_launch(self, node: SlurmNode, id: str) -> bool:
        """Sends a launch again; False if it was acknowledged."""
        launch = self._launches.get(id)
        if launch is not None:
            self.launch(node, launch)
        return launch is not None

    def resend_others(self, node: SlurmNode, alive: Iterable[str]) -> None:
        """Sends the stops of these launches and all forgets again."""
        for id in alive:
            if id in self._stops:
                self.stop(node, id, self._stops[id])
        for job in set(self._forgets.get(node.name, ())):
            self.forget(node, job)
