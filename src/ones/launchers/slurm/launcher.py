"""SlurmLauncher: the controller's side. One thread, which listens to the agents of all nodes.

Nodes come when their agents call and go when they say so, or when they were silent for too long.
Run directories are shared, so that output and exit records are read where they were written, also
of nodes that are gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ones.exec import Exit, Spec
from ones.exec.records import parse_exit, write_record
from ones.launchers.api import Launch, Listener, Process, Slot
from ones.launchers.exits import fenced, not_started
from ones.launchers.loop import wait_for
from ones.launchers.run_dirs import RunDirs
from ones.launchers.slurm.door import Arrival, Door, guarded
from ones.launchers.slurm.errands import Errands
from ones.launchers.slurm.nodes import Node, Nodes
from ones.launchers.slurm.options import SlurmOptions
from ones.launchers.slurm.shared import LOST, Shared
from ones.launchers.threaded import TURN_SECONDS, Threaded

CLOSE_SECONDS = 30.0

log = logging.getLogger(__name__)


class SlurmLauncher(Threaded):
    def __init__(self, root: Path, options: SlurmOptions) -> None:
        super().__init__(RunDirs(root))
        self._shared, self._options = Shared(root), options
        self._nodes = Nodes(self._shared, options.timing, self._tell)
        self._errands = Errands()
        self._door: Door
        self.unfit: dict[str, str] = {}  # nodes that cannot be used, and why
        self._closing = False
        self._close_by = 0.0

    # what callers see

    def open(self, listener: Listener) -> None:
        self._shared.make()
        found = list(self._dirs.all())
        for kept in found:
            self._ledger.find(kept.process, kept.node)
        self._nodes.recall(kept.node for kept in found if kept.process.alive)
        self._door = Door(self._shared, self._options)
        self._begin(listener)
        self._await_nodes()

    def _await_nodes(self) -> None:
        """Until all nodes of the allocations that are here have called, or turned out unfit."""
        deadline = time.monotonic() + self._options.patience
        while time.monotonic() < deadline:
            expected = {n for a in self._shared.allocations() if not a.ending for n in a.nodes}
            if expected and expected <= self._nodes.on_the_line() | set(self.unfit):
                return
            time.sleep(0.05)

    def slots(self) -> list[Slot]:
        return self._nodes.slots()

    # the thread

    def _turn(self) -> None:
        lines = [*self._nodes.lines, *self._door.lines]
        wait_for([self._todo, self._door], lines, min(TURN_SECONDS, self._options.timing.ping / 4))
        for arrival in self._door.arrivals():
            with guarded(arrival.line, arrival.node):
                self._meet(arrival)
            if arrival.line.closed and arrival.line not in self._nodes.lines:
                arrival.line.close()
        for node in self._nodes.all():
            if node.line is not None:
                with guarded(node.line, node.name):
                    self._serve(node)
        self._todo.do_all()
        for node in self._nodes.look_at_clock(time.monotonic()):
            self._lost(node, "it does not answer")

    def _end(self) -> None:
        for line in self._nodes.lines:
            line.flush()
            line.close()
        self._door.close()

    def _is_done(self) -> bool:
        if not self._closing:
            return False
        waiting = any(p.alive and self._is_reached(p) for p in self.running().values())
        return not waiting or time.monotonic() > self._close_by

    def _is_reached(self, process: Process) -> bool:
        node = self._nodes.get(self._ledger.node_of(process.id))
        return node is not None and node.line is not None and self._close_by > 0

    def _close(self, kill: bool) -> None:
        self._closing = True
        if kill:
            self._close_by = time.monotonic() + CLOSE_SECONDS
            for node in self._nodes.all():
                node.say({"do": "close"})

    # nodes come and go

    def _meet(self, arrival: Arrival) -> None:
        node = self._register(arrival)
        if node is not None:
            self._compare(node, arrival.said["launches"])
            if arrival.said["ending"]:
                self._nodes.ending(node)
            for message in arrival.more:
                self._hear(node, message)

    def _register(self, arrival: Arrival) -> Node | None:
        """None: it is not taken."""
        name, line, said = arrival.node, arrival.line, arrival.said
        if self._shared.word(name) == LOST:
            line.close()  # it will read that itself, clear up, and call again
            return None
        if said["trouble"]:
            self.unfit[name] = said["trouble"]
            log.warning("node cannot be used", extra={"node": name, "reason": said["trouble"]})
            _send_away(arrival, said["trouble"])
            return None
        known = self._nodes.get(name)
        if known is not None and known.free_at is not None:
            self._lost(known, "it was given up, and has come back")  # cleared by its agent
            known = None
        slots = [Slot.of(plain) for plain in said["slots"]]
        if known is not None:
            if known.line is not None and known.allocation != said["allocation"]:
                _send_away(arrival, f"it serves in allocation {known.allocation} already")
                return None
            known.hang_up()
            if len(known.slots) != len(slots):
                self._lost(known, f"it has come back with {len(slots)} slots")
        self.unfit.pop(name, None)
        node = Node(name, slots, said["allocation"], line)
        self._nodes.add(node)
        return node

    def _compare(self, node: Node, launches: Sequence[dict[str, Any]]) -> None:
        """What lives there is told again; what it does not know is sent again, or was lost."""
        for plain in launches:
            self._errands.arrived(plain["id"])
            if plain["exit"] is not None:
                self._exited(plain["id"], parse_exit(plain["exit"]))
            elif plain["pid"] is not None:
                self._ledger.started(plain["id"], plain["pid"])
        self._errands.remind(node, [plain["id"] for plain in launches if plain["exit"] is None])
        there = {plain["id"] for plain in launches}
        for process in self._ledger.living_on(node.name):
            if process.id not in there and not self._errands.launch_again(node, process.id):
                self._exited(process.id, not_started("its node does not know of it"))

    def _lost(self, node: Node, cause: str) -> None:
        """Nothing runs there any more."""
        self._nodes.lose(node, cause)
        record = fenced(f"node {node.name}: {cause}")
        for process in self._ledger.living_on(node.name):
            self._errands.arrived(process.id)
            self._write_exit(process, node.name, record)
            self._exited(process.id, record)
        for job in self._errands.take_forgets(node.name):
            self._forgotten(job, node.name)
        node.hang_up()

    def _write_exit(self, process: Process, node: str, record: Exit) -> None:
        directory = self._dirs.directory(process.job, node, process.id)
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (directory / "spec.json").exists():  # it never got there
                spec = Spec(id=process.id, argv=("-",), cwd="/", env={}, slots=process.slots)
                write_record(directory, spec)
            write_record(directory, record)

    # what agents say

    def _serve(self, node: Node) -> None:
        if node.line is None:
            return
        node.line.flush()
        for message in node.line.receive():
            self._nodes.heard(node)
            self._hear(node, message)
        if node.line is not None and node.line.closed:
            node.hang_up()

    def _hear(self, node: Node, message: dict[str, Any]) -> None:
        match message.get("event"):
            case "started":
                self._errands.arrived(message["id"])
                self._ledger.started(message["id"], message["pid"])
            case "exited":
                self._errands.arrived(message["id"])
                self._exited(message["id"], parse_exit(message["exit"]))
            case "refused":
                self._errands.arrived(message["id"])
                self._exited(message["id"], not_started(message["why"]))
            case "forgotten":
                self._forgotten(message["job"], node.name)
            case "ending":
                self._nodes.ending(node)
            case "leaving":
                self._lost(node, "its allocation has ended")
            case _:
                pass  # a ping

    def _exited(self, id: str, exit: Exit) -> None:
        self._errands.exited(id)
        self._ledger.exited(id, exit)

    def _forgotten(self, job: str, node: str) -> None:
        """Nothing of it is left on that node; if the node could not, we put its files away."""
        self._errands.forgotten(node, job)
        self._ledger.forget(job, node)
        self._dirs.put_away(job, node)

    # requests

    def _launch(self, launch: Launch) -> None:
        nodes = self._nodes.by_slot()
        missing = [id for id in launch.slots if id not in nodes]
        if missing:
            self._exited(launch.id, not_started(f"slot {missing[0]} is not here"))
            return
        node = nodes[launch.slots[0]]
        if node.free_at is not None:
            self._exited(launch.id, not_started(f"node {node.name} was given up"))
            return
        self._ledger.place(launch.id, node.name)
        self._errands.launch(node, launch)

    def _prepare(self, launch: Launch) -> None:
        for node in self._nodes.all():
            if any(slot.id in launch.slots for slot in node.slots):
                node.say({"do": "prepare", "launch": asdict(launch)})

    def _stop(self, id: str, grace: float) -> None:
        node = self._nodes.get(self._ledger.node_of(id))
        if node is not None and self._ledger.living(id) is not None:
            self._errands.stop(node, id, grace)

    def _forget(self, job: str) -> None:
        for name in self._ledger.nodes_of(job):
            node = self._nodes.get(name)
            if node is None:
                self._forgotten(job, name)
            else:
                self._errands.forget(node, job)


def _send_away(arrival: Arrival, why: str) -> None:
    arrival.line.send({"do": "unfit", "why": why})
    arrival.line.close()
