"""A simulated launcher: nodes, slots and processes that outlive the controller.

It knows every process that exists, so it detects two processes on one slot. A request that was
not handed over when the controller crashed is lost. An event without a controller to receive it
is not sent again, but `running` includes its effect, as the contract of launchers requires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from ones.exec import Exit
from ones.exec.output import Chunk
from ones.lab.faults.context import FaultContext
from ones.launchers import (
    Exited,
    Launch,
    LaunchedProcess,
    LauncherEvent,
    Slot,
    SlotEnding,
    SlotLost,
    SlotSuspect,
    SlotUp,
    SlotUsed,
    Started,
)
from ones.launchers.api import Listener

HANDOVER_SECONDS = 0.005  # from a call to the process that owns the workers
TELL_SECONDS = 0.01


class SimulatedProcess(Protocol):
    """A process of the launcher. It calls `SimulatedLauncher.exited` when it ends."""

    def start(self) -> None: ...

    def terminate(self, grace: float) -> None:
        """Sends SIGTERM; the process is killed after the grace time."""

    def kill(self) -> None:
        """Kills the process at once; it reports nothing more."""

    def cut(self, is_cut: bool) -> None:
        """Cuts the process off the network, or reconnects it."""


@dataclass(slots=True)
class SimulatedNode:
    name: str
    gpus: int
    is_up: bool = True
    is_cut: bool = False
    other_users: dict[int, str] = field(default_factory=dict)
    requests: list[Callable[[], None]] = field(default_factory=list)  # while it is out of reach

    def slots(self) -> list[Slot]:
        return [
            Slot(
                node=self.name,
                index=i,
                used_by=(self.other_users[i],) if i in self.other_users else (),
            )
            for i in range(self.gpus)
        ]


class SimulatedLauncher:
    def __init__(
        self,
        context: FaultContext,
        nodes: dict[str, int],
        spawn: Callable[[Launch], SimulatedProcess],
    ) -> None:
        self._context, self._spawn = context, spawn
        self.nodes = {name: SimulatedNode(name, gpus) for name, gpus in nodes.items()}
        self._listener: Listener | None = None
        self._known: dict[str, LaunchedProcess] = {}
        self._nodes_of: dict[str, str] = {}  # launch -> node
        self._alive: dict[str, SimulatedProcess] = {}  # processes that exist
        self._occupants: dict[str, str] = {}  # slot -> launch on it
        self._launched: set[str] = set()  # every id that ever started
        self._pids = 0

    # called by the controller

    def open(self, listener: Listener) -> None:
        self._context.use("launcher, open")
        self._listener = listener

    def slots(self) -> list[Slot]:
        self._context.use("launcher, slots")
        return [s for node in self.nodes.values() if node.is_up for s in node.slots()]

    def launch(self, launch: Launch) -> None:
        self._context.use("launcher, before a launch")
        if launch.id not in self._known:
            self._known[launch.id] = LaunchedProcess(
                id=launch.id, job=launch.job, slots=launch.slots
            )
            node = launch.slots[0].rpartition("/")[0]
            self._nodes_of[launch.id] = node
            self._handed_over(node, lambda: self._start(launch), lambda: self._withdraw(launch))
        self._context.use("launcher, after a launch")

    def stop(self, id: str, grace_seconds: float) -> None:
        self._context.use("launcher, before a stop")
        if id in self._known:
            self._handed_over(self._nodes_of[id], lambda: self._stop(id, grace_seconds))
        self._context.use("launcher, after a stop")

    def running(self) -> dict[str, LaunchedProcess]:
        self._context.use("launcher, running")
        return dict(self._known)

    def history(self, job: str) -> list[LaunchedProcess]:
        return [process for process in self._known.values() if process.job == job]

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return Chunk(b"", 0, 0)

    def forget(self, job: str) -> None:
        self._context.use("launcher, before a forget")
        self._handed_over("", lambda: self._forget(job))

    def close(self, *, kill: bool) -> None:
        self._listener = None

    # called by the simulation

    def crashed(self) -> None:
        self._listener = None

    def living(self) -> list[str]:
        return list(self._alive)

    def exited(self, id: str, exit: Exit) -> None:
        """A process has ended."""
        if self._alive.pop(id, None) is None:
            return
        for slot in [s for s, there in self._occupants.items() if there == id]:
            del self._occupants[slot]
        self._ended(id, exit)

    def lose(self, node: SimulatedNode, cause: str) -> None:
        """Fences a node: its processes are dead before the controller gets the event."""
        dead = [id for id, name in self._nodes_of.items() if name == node.name]
        for id in dead:
            if id in self._alive:
                self._alive.pop(id).kill()
                for slot in [s for s, there in self._occupants.items() if there == id]:
                    del self._occupants[slot]
        node.is_up, node.is_cut = False, False
        node.requests.clear()
        slots = [SlotLost(slot.id, cause) for slot in node.slots()]
        exits = []
        for id in dead:
            process = self._known.get(id)
            if process is not None and process.alive:
                exit = Exit(code=None, at=self._context.now, cause="fenced", message=cause)
                self._known[id] = replace(process, exit=exit)
                exits.append(Exited(id, exit))
        in_order: list[LauncherEvent] = [*slots, *exits]
        if self._context.rng.random() < 0.3:
            in_order = [*exits, *slots]
        for event in in_order:
            self._tell(event)
        self._context.note(f"node {node.name} is lost: {cause}")

    def restore(self, node: SimulatedNode) -> None:
        node.is_up = True
        for slot in node.slots():
            self._tell(SlotUp(slot))
        self._context.note(f"node {node.name} is up")

    def cut(self, node: SimulatedNode) -> None:
        node.is_cut = True
        for slot in node.slots():
            self._tell(SlotSuspect(slot.id, "it does not answer"))
        for process in self._on_node(node):
            process.cut(True)
        self._context.note(f"node {node.name} is out of reach")

    def reconnect(self, node: SimulatedNode) -> None:
        node.is_cut = False
        for process in self._on_node(node):
            process.cut(False)
        requests, node.requests = node.requests, []
        for request in requests:
            request()
        self._context.note(f"node {node.name} is back in reach")

    def ending(self, node: SimulatedNode) -> None:
        for slot in node.slots():
            self._tell(SlotEnding(slot.id, "its allocation ends soon"))

    def used(self, node: SimulatedNode, index: int, by: str) -> None:
        if by:
            node.other_users[index] = by
        else:
            node.other_users.pop(index, None)
        self._tell(SlotUsed(node.slots()[index]))

    def _on_node(self, node: SimulatedNode) -> list[SimulatedProcess]:
        return [p for id, p in self._alive.items() if self._nodes_of[id] == node.name]

    # inside the launcher

    def _handed_over(
        self, node: str, do: Callable[[], None], lost: Callable[[], None] = lambda: None
    ) -> None:
        """Calls `do` when the request arrives, or `lost` if the controller crashed before."""
        instance = self._context.instance

        def arrive() -> None:
            if not instance.alive:
                lost()
            elif node in self.nodes and self.nodes[node].is_cut:
                self.nodes[node].requests.append(do)
            else:
                do()

        self._context.after(HANDOVER_SECONDS, arrive)

    def _withdraw(self, launch: Launch) -> None:
        known = self._known.get(launch.id)
        if known is not None and known.alive and known.pid is None:
            del self._known[launch.id]

    def _start(self, launch: Launch) -> None:
        known = self._known.get(launch.id)
        if known is None or not known.alive:
            return
        node = self.nodes.get(self._nodes_of[launch.id])
        if node is None or not node.is_up:
            why = f"slot {launch.slots[0]} is not here"
            self._ended(launch.id, _start_failure(self._context.now, why))
            return
        self._context.after(self._context.rng.uniform(0.05, 1.0), lambda: self._exec(launch))

    def _exec(self, launch: Launch) -> None:
        known = self._known.get(launch.id)
        node = self.nodes[self._nodes_of[launch.id]]
        if known is None or not known.alive or not node.is_up:
            return
        if launch.id in self._launched:
            self._context.violation(f"launch {launch.id} was started twice")
        self._launched.add(launch.id)
        for slot in launch.slots:
            if slot in self._occupants:
                self._context.violation(
                    f"{slot} has two processes: {self._occupants[slot]} and {launch.id}"
                )
            self._occupants[slot] = launch.id
        self._pids += 1
        self._known[launch.id] = replace(known, pid=self._pids)
        self._alive[launch.id] = process = self._spawn(launch)
        if node.is_cut:
            process.cut(True)
        self._context.note(f"process {launch.id} starts")
        self._tell(Started(launch.id, self._pids))
        process.start()

    def _stop(self, id: str, grace: float) -> None:
        process = self._alive.get(id)
        if process is not None:
            self._context.note(f"process {id} gets a stop with {grace:g} s of grace")
            process.terminate(grace)
        elif id in self._known and self._known[id].alive:
            self._ended(id, Exit(code=None, at=self._context.now, cause="stopped"))

    def _forget(self, job: str) -> None:
        for id in [id for id, process in self._known.items() if process.job == job]:
            if id in self._alive:
                self._alive[id].kill()
                self.exited(id, Exit(code=None, signal=9, at=self._context.now, cause="stopped"))
            del self._known[id]

    def _ended(self, id: str, exit: Exit) -> None:
        process = self._known.get(id)
        if process is not None and process.alive:
            self._known[id] = replace(process, exit=exit)
            self._context.note(f"process {id} ended: {exit.cause}, {exit.describe()}")
            self._tell(Exited(id, exit))

    def _tell(self, event: LauncherEvent) -> None:
        self._context.after(TELL_SECONDS, lambda: self._deliver(event))

    def _deliver(self, event: LauncherEvent) -> None:
        if self._listener is not None:
            self._listener(event)


def _start_failure(at: float, why: str) -> Exit:
    return Exit(code=None, at=at, cause="not-started", message=why)
