"""What agents were asked to do. Each is told again, when it calls again, what it has not said yet
that it knows of or has done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from ones.launchers.api import Launch
from ones.launchers.slurm.nodes import Node


class Errands:
    def __init__(self) -> None:
        self._launches: dict[str, Launch] = {}
        self._stops: dict[str, float] = {}  # launch -> grace
        self._forgets: dict[str, set[str]] = {}  # node -> jobs

    # asked

    def launch(self, node: Node, launch: Launch) -> None:
        self._launches[launch.id] = launch
        node.say({"do": "launch", "launch": asdict(launch)})

    def stop(self, node: Node, id: str, grace: float) -> None:
        self._stops[id] = grace
        node.say({"do": "stop", "id": id, "grace": grace})

    def forget(self, node: Node, job: str) -> None:
        self._forgets.setdefault(node.name, set()).add(job)
        node.say({"do": "forget", "job": job})

    # done

    def arrived(self, id: str) -> None:
        """An agent knows of that launch, or nobody needs to any more."""
        self._launches.pop(id, None)

    def exited(self, id: str) -> None:
        self._stops.pop(id, None)

    def forgotten(self, node: str, job: str) -> None:
        self._forgets.get(node, set()).discard(job)

    def take_forgets(self, node: str) -> set[str]:
        """Of a node that will not do them."""
        return self._forgets.pop(node, set())

    # asked again

    def launch_again(self, node: Node, id: str) -> bool:
        """False: its agent knew of it once."""
        launch = self._launches.get(id)
        if launch is not None:
            self.launch(node, launch)
        return launch is not None

    def remind(self, node: Node, alive: Iterable[str]) -> None:
        """Of what is to be stopped among these, and of what is to be forgotten."""
        for id in alive:
            if id in self._stops:
                self.stop(node, id, self._stops[id])
        for job in set(self._forgets.get(node.name, ())):
            self.forget(node, job)
