"""SlurmLauncher: the controller's side. One thread, connected to the agents of all nodes.

A node joins when its agent registers, and leaves when its agent says so or is silent for too long.
Run directories are in the shared directory: output and exit records of nodes that are gone can
still be read.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ones.exec.records import Exit, Launch, fenced, not_started, parse_record
from ones.exec.run_dir import is_known, write_record
from ones.launchers.api import LaunchedProcess, LauncherContext, Listener, Slot
from ones.launchers.probe import write_probe
from ones.launchers.remote_launcher import RemoteLauncher
from ones.launchers.run_dirs import RunDirs
from ones.launchers.slurm.agent_server import AgentRegistration, AgentServer, guarded
from ones.launchers.slurm.allocation import current_allocation, manage_in_background
from ones.launchers.slurm.nodes import SlurmNode, SlurmNodes
from ones.launchers.slurm.pending_requests import PendingRequests
from ones.launchers.slurm.settings import SlurmOptions, SlurmSettings, Timing
from ones.launchers.slurm.shared_directory import LOST, SharedDirectory
from ones.launchers.threaded_launcher import TURN_SECONDS
from ones.launchers.work_queue import wait_for_input

CLOSE_SECONDS = 30.0
#: longest wait of `open` for the nodes of the service's own allocation
OPEN_SECONDS = 30.0
LOOPBACK = "127.0.0.1"

log = logging.getLogger(__name__)


class SlurmLauncher(RemoteLauncher[SlurmNode]):
    """Starts workers on the nodes of Slurm allocations."""

    Settings = SlurmSettings

    def __init__(self, root: Path, options: SlurmOptions) -> None:
        super().__init__(RunDirs(root))
        self._shared, self._options = SharedDirectory(root), options
        self._nodes: SlurmNodes = SlurmNodes(self._shared, options.timing, self._notify)
        self._pending = PendingRequests()
        self._server: AgentServer
        self._close_by = 0.0  # while workers are being ended

    @classmethod
    def for_service(cls, context: LauncherContext, **settings: Any) -> Self:
        """Makes the launcher. A service that runs in an allocation uses its nodes."""
        timing = Timing.from_environment()
        context.runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        probes = (write_probe(str(context.runs)), write_probe(context.checkpoints))
        is_inside = bool(current_allocation())
        if is_inside:
            lead = SlurmSettings(**settings).lead
            manage_in_background(context.runs, cpus=context.slots or 1, lead=lead, timing=timing)
        options = SlurmOptions(
            host=context.host,
            advertise=context.advertise,
            timing=timing,
            probes=probes,
            open_seconds=OPEN_SECONDS if is_inside else 0.0,
        )
        return cls(context.runs, options)

    @classmethod
    def stop_workers(cls, context: LauncherContext, **settings: Any) -> None:
        """Ends the workers on all nodes with an agent that registers in time."""
        timing, shared = Timing.from_environment(), SharedDirectory(context.runs)
        seconds = timing.suspect if shared.other_allocations("") else 0.0
        host = _known_host(shared) or own_host()
        launcher = cls(context.runs, SlurmOptions(host=host, timing=timing, open_seconds=seconds))
        launcher.open(lambda event: None)
        launcher.close(kill=True)

    def open(self, listener: Listener) -> None:
        self._shared.make()
        self._nodes.restore_with(self._restore_launches())
        self._server = AgentServer(self._shared, self._options)
        self._start_thread(listener)
        self._wait_for_nodes()

    def _wait_for_nodes(self) -> None:
        """Waits until all nodes of managed allocations have registered, or cannot be used."""
        deadline = time.monotonic() + self._options.open_seconds
        while time.monotonic() < deadline:
            expected = {n for a in self._shared.allocations() if not a.ending for n in a.nodes}
            if expected and expected <= self._nodes.connected() | set(self.unfit):
                return
            time.sleep(0.05)

    def allocations(self) -> dict[str, str]:
        return {n.name: n.source for n in self._nodes.all() if n.slots and not n.is_ending}

    # the thread

    def _turn(self) -> None:
        connections = (*self._nodes.connections, *self._server.connections)
        seconds = min(TURN_SECONDS, self._options.timing.ping / 4)
        wait_for_input([self._work, self._server, *connections], seconds)
        for registration in self._server.registrations():
            connection = registration.connection
            with guarded(connection, registration.node):
                self._admit(registration)
            if connection.closed and connection not in self._nodes.connections:
                connection.close()
        for node in self._nodes.all():
            if node.connection is not None:
                with guarded(node.connection, node.name):
                    self._serve(node)
        self._work.run_all()
        for node in self._nodes.check_clock(time.monotonic()):
            self._lose(node, "the node does not answer")

    def _end(self) -> None:
        for connection in self._nodes.connections:
            connection.flush()
            connection.close()
        self._server.close()

    def _is_done(self) -> bool:
        waiting = any(p.alive and self._is_ending(p) for p in self.running().values())
        return not waiting or time.monotonic() > self._close_by

    def _is_ending(self, process: LaunchedProcess) -> bool:
        node = self._nodes.get(process.node)
        return node is not None and node.connection is not None and self._close_by > 0

    def _kill_all(self) -> None:
        self._close_by = time.monotonic() + CLOSE_SECONDS
        for node in self._nodes.all():
            node.send({"do": "close"})

    # nodes join and leave

    def _admit(self, registration: AgentRegistration) -> None:
        node = self._register(registration)
        if node is not None:
            self._reconcile(node, registration.description["launches"])
            if registration.description["ending"]:
                self._nodes.ending(node)
            for message in registration.more:
                self._handle(node, message)

    def _register(self, registration: AgentRegistration) -> SlurmNode | None:
        """Adds the node of a registration; None if it is refused."""
        name, description = registration.node, registration.description
        if self._shared.node_state(name) == LOST:
            registration.connection.close()  # the agent reads the state, cleans up and reconnects
            return None
        if description["trouble"]:
            self.unfit[name] = description["trouble"]
            about = {"node": name, "reason": description["trouble"]}
            log.warning("node cannot be used", extra=about)
            _refuse(registration, description["trouble"])
            return None
        known = self._nodes.get(name)
        if known is not None and known.free_at is not None:
            self._lose(known, "the node was given up and is back")  # its agent has cleaned up
            known = None
        slots = [Slot.of(plain) for plain in description["slots"]]
        if known is not None:
            if known.connection is not None and known.source != description["allocation"]:
                _refuse(registration, f"node {name} is in use in allocation {known.source}")
                return None
            known.disconnect()
            if len(known.slots) != len(slots):
                self._lose(known, f"the node is back with {len(slots)} slots")
        self.unfit.pop(name, None)
        node = SlurmNode(name, slots, description["allocation"], registration.connection)
        self._nodes.add(node)
        return node

    def _reconcile(self, node: SlurmNode, launches: Sequence[dict[str, Any]]) -> None:
        """Adopts the agent's state, and sends again the requests that the agent does not know."""
        for plain in launches:
            self._pending.arrived(plain["id"])
            if plain["exit"] is not None:
                self._exited(plain["id"], parse_record(Exit, plain["exit"]))
            elif plain["pid"] is not None:
                self._launches.started(plain["id"], plain["pid"])
        alive = [plain["id"] for plain in launches if plain["exit"] is None]
        self._pending.resend_others(node, alive)
        known = {plain["id"] for plain in launches}
        for process in self._launches.living_on(node.name):
            if process.id not in known and self._pending.resend_launch(node, process.id):
                known.add(process.id)
        self._fail_unknown(node.name, known)

    def _lose(self, node: SlurmNode, cause: str) -> None:
        """Removes a node on which no process runs any more, and ends its launches."""
        self._nodes.remove(node, cause)
        record = fenced(f"node {node.name}: {cause}")
        for process in self._launches.living_on(node.name):
            self._pending.arrived(process.id)
            self._write_exit(process, node.name, record)
            self._exited(process.id, record)
        for job in self._pending.take_forgets(node.name):
            self._forgotten(job, node.name)
        node.disconnect()

    def _write_exit(self, process: LaunchedProcess, node: str, record: Exit) -> None:
        directory = self._dirs.directory(process.job, node, process.id)
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_known(directory):  # the launch never reached the node
                id, job, slots = process.id, process.job, process.slots
                launch = Launch(id=id, job=job, slots=slots, argv=("-",), cwd="/", env={})
                write_record(directory, launch)
            write_record(directory, record)

    # messages of agents

    def _serve(self, node: SlurmNode) -> None:
        if node.connection is None:
            return
        node.connection.flush()
        for message in node.connection.receive():
            self._nodes.mark_alive(node)
            self._handle(node, message)
        if node.connection is not None and node.connection.closed:
            node.disconnect()

    def _handle(self, node: SlurmNode, message: dict[str, Any]) -> None:
        match message.get("event"):
            case "started" | "exited":
                self._pending.arrived(message["id"])
                self._handle_launch_event(message)
            case "refused":
                self._pending.arrived(message["id"])
                self._exited(message["id"], not_started(message["why"]))
            case "forgotten":
                self._forgotten(message["job"], node.name)
            case "sampled":
                self._handle_samples(node.name, message.get("samples"))
            case "ending":
                self._nodes.ending(node)
            case "leaving":
                self._lose(node, f"allocation {node.source} has ended")
            case _:
                pass  # a ping

    def _exited(self, id: str, exit: Exit) -> None:
        self._pending.exited(id)
        super()._exited(id, exit)

    def _forgotten(self, job: str, node: str) -> None:
        """Drops a job that has no process left on the node; archives its files if still live."""
        self._pending.forgotten(node, job)
        self._launches.forget(job, node)
        self._dirs.archive(job, node)

    # requests

    def _refuses(self, node: SlurmNode) -> str:
        return f"node {node.name} was given up" if node.free_at is not None else ""

    def _send_launch(self, node: SlurmNode, launch: Launch) -> None:
        self._pending.launch(node, launch)

    def _send(self, node: SlurmNode, request: dict[str, Any]) -> None:
        node.send(request)

    def _stop(self, id: str, grace: float) -> None:
        process = self._launches.living(id)
        node = self._nodes.get(process.node) if process is not None else None
        if node is not None:
            self._pending.stop(node, id, grace)

    def _forget(self, job: str) -> None:
        for name in self._launches.nodes_of(job):
            node = self._nodes.get(name)
            if node is None:
                self._forgotten(job, name)
            else:
                self._pending.forget(node, job)


def _refuse(registration: AgentRegistration, why: str) -> None:
    registration.connection.send({"do": "unfit", "why": why})
    registration.connection.close()


def _known_host(shared: SharedDirectory) -> str:
    """The address at which agents look for the controller, if it is one of this machine."""
    address = shared.address()
    for host in address.hosts if address is not None else ():
        with suppress(OSError), socket.create_server((host, 0)):
            return host
    return ""


def own_host() -> str:
    """The address of this machine by its host name, which other nodes of the cluster know."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK
