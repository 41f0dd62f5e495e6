"""SlurmLauncher: the controller's side. One thread, which listens to the agents of all nodes.

Nodes come when their agents call and go when they say so, or when they were silent for too long:
then they are told, through the shared directory, that they are given up, and after their lease
nothing runs there any more. Run directories are shared, so that output and exit records are read
where they were written, also of nodes that are gone.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ones.errors import WorldError
from ones.exec import Chunk, Exit, Spec
from ones.exec.lines import Connection
from ones.exec.records import write
from ones.launchers import run_dirs
from ones.launchers.api import (
    Exited,
    Launch,
    Listener,
    Process,
    Slot,
    SlotEnding,
    SlotLost,
    SlotSuspect,
    SlotUp,
    Started,
)
from ones.launchers.keeper import on_disk
from ones.launchers.probe import Probe
from ones.launchers.slurm.shared import LOST, AgentsAddress, Shared, Timing, proof

CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    host: str = "127.0.0.1"  # where to listen to agents
    advertise: str = ""  # where they find us, if that is another address
    timing: Timing = field(default_factory=Timing)
    probes: tuple[Probe, ...] = ()  # what every node must be able to read
    patience: float = 0.0  # seconds: so long `open` waits for the nodes of allocations


@dataclass(slots=True)
class _Node:
    """A node that has slots of ours, whether it answers or not."""

    name: str
    slots: list[Slot]
    allocation: str = ""
    line: Connection | None = None
    heard: float = field(default_factory=time.monotonic)
    is_suspect: bool = False
    is_ending: bool = False
    free_at: float | None = None  # given up: when nothing can run there any more


@dataclass(slots=True)
class _Caller:
    """Somebody on the line who has not proved yet who it is."""

    line: Connection
    nonce: str
    node: str = ""
    since: float = field(default_factory=time.monotonic)


class SlurmLauncher:
    def __init__(self, root: Path, options: SlurmOptions) -> None:
        self._shared, self._options = Shared(root), options
        self._timing = options.timing
        self._live, self._ended = root / "live", root / "ended"
        self._lock = threading.Lock()  # of what others read: processes, and the nodes' slots
        self._processes: dict[str, Process] = {}
        self._nodes: dict[str, _Node] = {}
        self._node_of: dict[str, str] = {}  # launch -> node
        # what no agent has said yet that it knows of; told again when one calls
        self._unsent: dict[str, Launch] = {}
        self._stops: dict[str, float] = {}  # launch -> grace
        self._forgets: dict[str, set[str]] = {}  # node -> jobs
        self.unfit: dict[str, str] = {}  # nodes that cannot be used, and why
        self._callers: list[_Caller] = []
        self._listener: Listener = lambda event: None
        self._todo: deque[Callable[[], None]] = deque()
        self._closing = False
        self._close_by = 0.0
        self._pinged = 0.0
        self._door: socket.socket | None = None
        self._wake_end, self._wake = socket.socketpair()
        for end in (self._wake_end, self._wake):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="ones-launcher", daemon=True)

    # what callers see

    def open(self, listener: Listener) -> None:
        self._shared.make()
        self._key = self._shared.key()
        for run_dir in sorted(self._live.glob("*/*")):
            for spec, pid, _, exit in on_disk(run_dir):
                job = unquote(run_dir.parent.name)
                self._processes[spec.id] = Process(
                    id=spec.id, job=job, slots=spec.slots, pid=pid, exit=exit
                )
                self._node_of[spec.id] = run_dir.name
        self._read_nodes()
        self._door = self._listen()
        self._listener = listener
        self._thread.start()
        self._await_nodes()

    def _await_nodes(self) -> None:
        """Until all nodes of the allocations that are here have called, or turned out unfit."""
        deadline = time.monotonic() + self._options.patience
        while time.monotonic() < deadline:
            expected = {n for a in self._shared.allocations() if not a.ending for n in a.nodes}
            with self._lock:
                here = {n.name for n in self._nodes.values() if n.line is not None}
            if expected and expected <= here | set(self.unfit):
                return
            time.sleep(0.05)

    def slots(self) -> list[Slot]:
        with self._lock:
            return [slot for name in sorted(self._nodes) for slot in self._nodes[name].slots]

    def launch(self, launch: Launch) -> None:
        with self._lock:
            if launch.id in self._processes:
                return
            self._processes[launch.id] = Process(id=launch.id, job=launch.job, slots=launch.slots)
        self._later(lambda: self._launch(launch))

    def prepare(self, launch: Launch) -> None:
        self._later(lambda: self._prepare(launch))

    def stop(self, id: str, grace_seconds: float) -> None:
        self._later(lambda: self._stop(id, grace_seconds))

    def running(self) -> dict[str, Process]:
        with self._lock:
            return dict(self._processes)

    def history(self, job: str) -> list[Process]:
        return run_dirs.history(self._shared.root, job)

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return run_dirs.output(self._shared.root, job, id, offset, limit)

    def forget(self, job: str) -> None:
        self._later(lambda: self._forget(job))

    def close(self, *, kill: bool) -> None:
        self._later(lambda: self._close(kill))
        if self._thread.is_alive():
            self._thread.join()

    # the thread

    def _later(self, what: Callable[[], None]) -> None:
        self._todo.append(what)
        with suppress(BlockingIOError, OSError):
            self._wake.send(b"x")

    def _run(self) -> None:
        while not self._is_done():
            self._wait()
            for caller in list(self._callers):
                with self._guarded(caller.line):
                    self._attend(caller)
            for node in list(self._nodes.values()):
                if node.line is not None:
                    with self._guarded(node.line):
                        self._serve(node)
            while self._todo:
                self._todo.popleft()()
            self._look_at_clock(time.monotonic())
        for line in self._lines():
            line.flush()
            line.close()
        assert self._door is not None
        self._door.close()
        self._wake.close()
        self._wake_end.close()

    @contextmanager
    def _guarded(self, line: Connection) -> Iterator[None]:
        """Whoever talks nonsense is not talked to any more."""
        try:
            yield
        except (ValueError, KeyError, TypeError) as problem:
            print(f"an agent said what nobody understands: {problem!r}", file=sys.stderr)
            line.closed = True

    def _lines(self) -> list[Connection]:
        lines = [node.line for node in self._nodes.values() if node.line is not None]
        return [*lines, *(caller.line for caller in self._callers)]

    def _wait(self) -> None:
        assert self._door is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_end, selectors.EVENT_READ)
            selector.register(self._door, selectors.EVENT_READ)
            for line in self._lines():
                writes = selectors.EVENT_WRITE if line.wants_to_write else 0
                selector.register(line, selectors.EVENT_READ | writes)
            selector.select(self._timing.ping / 4)
        with suppress(BlockingIOError):
            self._wake_end.recv(4096)
        with suppress(BlockingIOError, OSError):
            while True:
                sock, _ = self._door.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._callers.append(_Caller(Connection(sock), secrets.token_hex(16)))

    def _is_done(self) -> bool:
        if not self._closing:
            return False
        waiting = any(p.alive and self._is_reached(p) for p in self.running().values())
        return not waiting or time.monotonic() > self._close_by

    def _is_reached(self, process: Process) -> bool:
        node = self._nodes.get(self._node_of.get(process.id, ""))
        return node is not None and node.line is not None and self._close_by > 0

    def _close(self, kill: bool) -> None:
        self._closing = True
        if kill:
            self._close_by = time.monotonic() + CLOSE_SECONDS
            for node in self._nodes.values():
                self._tell(node, {"do": "close"})

    def _listen(self) -> socket.socket:
        before = self._shared.address()
        for port in [before.port, 0] if before is not None else [0]:
            try:
                door = socket.create_server((self._options.host, port), backlog=512)
            except OSError as problem:
                if port:
                    continue
                raise WorldError(
                    f"{self._options.host}: cannot listen to agents: {problem.strerror or problem}"
                ) from problem
            break
        door.setblocking(False)
        host = self._options.advertise or self._options.host
        hosts = [socket.gethostname()] if host in ("0.0.0.0", "::", "") else [host]
        self._shared.write_address(AgentsAddress(port=door.getsockname()[1], hosts=hosts))
        return door

    # who calls

    def _attend(self, caller: _Caller) -> None:
        caller.line.flush()
        messages = caller.line.receive()
        for message in messages:
            if not caller.node:
                caller.node = str(message.get("node", ""))
                caller.line.send(
                    {
                        "do": "welcome",
                        "nonce": caller.nonce,
                        "proof": proof(
                            self._key, "controller", str(message.get("nonce", "")), caller.node
                        ),
                        "probes": [[p.directory, p.word] for p in self._options.probes],
                    }
                )
                continue
            expected = proof(self._key, "agent", caller.nonce, caller.node)
            self._callers.remove(caller)
            if hmac.compare_digest(str(message.get("proof", "")), expected):
                self._register(caller.node, caller.line, message)
                node = self._nodes.get(caller.node)
                if node is not None and node.line is caller.line:
                    for more in messages:  # what came with the proof
                        self._hear(node, more)
            else:
                caller.line.close()
            return
        if caller.line.closed or time.monotonic() - caller.since > self._timing.condemn:
            caller.line.close()
            self._callers.remove(caller)

    def _register(self, name: str, line: Connection, message: dict[str, Any]) -> None:
        if self._shared.word(name) == LOST:
            line.close()  # it will read that itself, clear up, and call again
            return
        if message["trouble"]:
            self.unfit[name] = message["trouble"]
            print(f"node {name} cannot be used: {message['trouble']}", file=sys.stderr, flush=True)
            line.send({"do": "unfit", "why": message["trouble"]})
            line.close()
            return
        known = self._nodes.get(name)
        if known is not None and known.free_at is not None:
            self._lost(known, "it was given up, and has come back")  # cleared by its agent
            known = None
        if (
            known is not None
            and known.line is not None
            and known.allocation != message["allocation"]
        ):
            why = f"it serves in allocation {known.allocation} already"
            line.send({"do": "unfit", "why": why})
            line.close()
            return
        self.unfit.pop(name, None)
        slots = [
            Slot(**{**plain, "used_by": tuple(plain["used_by"])}) for plain in message["slots"]
        ]
        if known is not None and known.line is not None:
            known.line.close()
        if known is not None and len(known.slots) != len(slots):
            self._lost(known, f"it has come back with {len(slots)} slots")
        node = _Node(name, slots, message["allocation"], line)
        with self._lock:
            self._nodes[name] = node
        self._write_nodes()
        for slot in slots:
            self._listener(SlotUp(slot))
        self._compare(node, message["launches"])
        if message["ending"]:
            self._ending(node)

    def _compare(self, node: _Node, launches: Sequence[dict[str, Any]]) -> None:
        """What lives there is told again; what it does not know is sent again, or was lost."""
        there = {plain["id"] for plain in launches}
        for plain in launches:
            self._unsent.pop(plain["id"], None)
            if plain["exit"] is not None:
                self._exited(plain["id"], Exit(**plain["exit"]))
            elif plain["pid"] is not None:
                self._started(plain["id"], plain["pid"])
            if plain["exit"] is None and plain["id"] in self._stops:
                grace = self._stops[plain["id"]]
                self._tell(node, {"do": "stop", "id": plain["id"], "grace": grace})
        for job in self._forgets.get(node.name, ()):
            self._tell(node, {"do": "forget", "job": job})
        for id in [id for id, where in self._node_of.items() if where == node.name]:
            if id in there or not self._processes[id].alive:
                continue
            launch = self._unsent.get(id)
            if launch is not None:
                self._tell(node, {"do": "launch", "launch": asdict(launch)})
            else:
                self._exited(id, _not_started("its node does not know of it"))

    # what agents say

    def _serve(self, node: _Node) -> None:
        if node.line is None:
            return
        node.line.flush()
        for message in node.line.receive():
            node.heard = time.monotonic()
            if node.is_suspect:
                node.is_suspect = False
                for slot in node.slots:
                    self._listener(SlotUp(slot))
            self._hear(node, message)
        if node.line is not None and node.line.closed:
            node.line.close()
            node.line = None

    def _hear(self, node: _Node, message: dict[str, Any]) -> None:
        match message.get("event"):
            case "started":
                self._unsent.pop(message["id"], None)
                self._started(message["id"], message["pid"])
            case "exited":
                self._unsent.pop(message["id"], None)
                self._exited(message["id"], Exit(**message["exit"]))
            case "refused":
                self._unsent.pop(message["id"], None)
                self._exited(message["id"], _not_started(message["why"]))
            case "forgotten":
                self._forgotten(message["job"], node.name)
            case "ending":
                self._ending(node)
            case "leaving":
                self._lost(node, "its allocation has ended")
            case _:
                pass  # a ping

    def _ending(self, node: _Node) -> None:
        if not node.is_ending:
            node.is_ending = True
            for slot in node.slots:
                self._listener(SlotEnding(slot.id, f"allocation {node.allocation} ends"))

    def _started(self, id: str, pid: int) -> None:
        with self._lock:
            known = self._processes.get(id)
            if known is None or not known.alive:
                return
            self._processes[id] = Process(id=id, job=known.job, slots=known.slots, pid=pid)
            if known.pid == pid:
                return
        self._listener(Started(id, pid))

    def _exited(self, id: str, exit: Exit) -> None:
        with self._lock:
            known = self._processes.get(id)
            if known is None or not known.alive:
                return
            self._processes[id] = Process(
                id=id, job=known.job, slots=known.slots, pid=known.pid, exit=exit
            )
        self._stops.pop(id, None)
        self._listener(Exited(id, exit))

    # requests

    def _launch(self, launch: Launch) -> None:
        nodes = {slot.id: node for node in self._nodes.values() for slot in node.slots}
        missing = [id for id in launch.slots if id not in nodes]
        if missing:
            self._exited(launch.id, _not_started(f"slot {missing[0]} is not here"))
            return
        node = nodes[launch.slots[0]]
        if node.free_at is not None:
            self._exited(launch.id, _not_started(f"node {node.name} was given up"))
            return
        self._node_of[launch.id] = node.name
        self._unsent[launch.id] = launch
        self._tell(node, {"do": "launch", "launch": asdict(launch)})

    def _prepare(self, launch: Launch) -> None:
        for node in self._nodes.values():
            if any(slot.id in launch.slots for slot in node.slots):
                self._tell(node, {"do": "prepare", "launch": asdict(launch)})

    def _stop(self, id: str, grace: float) -> None:
        node = self._nodes.get(self._node_of.get(id, ""))
        process = self._processes.get(id)
        if node is not None and process is not None and process.alive:
            self._stops[id] = grace
            self._tell(node, {"do": "stop", "id": id, "grace": grace})

    def _tell(self, node: _Node, message: dict[str, Any]) -> None:
        """If nobody is on the line, it is told when somebody calls."""
        if node.line is not None:
            node.line.send(message)

    def _forget(self, job: str) -> None:
        where = {self._node_of.get(p.id, "") for p in self.running().values() if p.job == job}
        for name in where:
            node = self._nodes.get(name)
            if node is None:
                self._forgotten(job, name)
                continue
            self._forgets.setdefault(name, set()).add(job)
            self._tell(node, {"do": "forget", "job": job})

    def _forgotten(self, job: str, name: str) -> None:
        """Nothing of it is left on that node; if the node could not, we put its files away."""
        self._forgets.get(name, set()).discard(job)
        with self._lock:
            for id in [p.id for p in self._processes.values() if p.job == job]:
                if self._node_of.get(id, "") == name:
                    del self._processes[id]
                    self._node_of.pop(id, None)
        source, target = self._live / quote(job, safe=""), self._ended / quote(job, safe="")
        with suppress(OSError):  # a full disk: it is found again at the next start
            if name and (source / name).is_dir():
                target.mkdir(mode=0o700, exist_ok=True)
                shutil.rmtree(target / name, ignore_errors=True)
                (source / name).rename(target / name)
            source.rmdir()

    # time

    def _look_at_clock(self, now: float) -> None:
        if now - self._pinged < self._timing.ping:
            return
        self._pinged = now
        for node in list(self._nodes.values()):
            silent = now - node.heard
            if node.free_at is not None:
                if now >= node.free_at:
                    self._lost(node, "it does not answer")
                continue
            self._tell(node, {"do": "ping"})
            if silent > self._timing.suspect and not node.is_suspect:
                node.is_suspect = True
                for slot in node.slots:
                    self._listener(SlotSuspect(slot.id, f"silent for {silent:.0f} s"))
            if silent > self._timing.condemn:
                self._condemn(node)

    def _condemn(self, node: _Node) -> None:
        """From the moment that this is written its agent renews no lease."""
        try:
            self._shared.say(node.name, LOST)
        except OSError:
            return  # we are the ones who are cut off: nobody is given up
        node.free_at = time.monotonic() + self._timing.lease + self._timing.margin
        if node.line is not None:
            node.line.close()
            node.line = None

    def _lost(self, node: _Node, cause: str) -> None:
        """Nothing runs there any more."""
        with self._lock:
            if self._nodes.get(node.name) is node:
                del self._nodes[node.name]
        self._write_nodes()
        for slot in node.slots:
            self._listener(SlotLost(slot.id, cause))
        message = f"node {node.name}: {cause}"
        record = Exit(code=None, at=time.time(), cause="fenced", message=message)
        for id in [id for id, where in self._node_of.items() if where == node.name]:
            process = self._processes.get(id)
            if process is not None and process.alive:
                self._unsent.pop(id, None)
                self._write_exit(process, node.name, record)
                self._exited(id, record)
        for job in self._forgets.pop(node.name, set()):
            self._forgotten(job, node.name)
        if node.line is not None:
            node.line.close()
            node.line = None

    def _write_exit(self, process: Process, node: str, record: Exit) -> None:
        directory = self._live / quote(process.job, safe="") / node / process.id
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (directory / "spec.json").exists():  # it never got there
                spec = Spec(id=process.id, argv=("-",), cwd="/", env={}, slots=process.slots)
                write(directory, spec)
            write(directory, record)

    # what is kept of nodes: a controller that comes back waits for those, and gives up the rest

    def _read_nodes(self) -> None:
        with suppress(OSError, ValueError):
            kept = json.loads((self._shared.root / "nodes.json").read_text())
            for name, (allocation, slots) in kept.items():
                given = [Slot(**{**plain, "used_by": tuple(plain["used_by"])}) for plain in slots]
                self._nodes[name] = _Node(name, given, allocation)
        for id, name in self._node_of.items():
            if name not in self._nodes and self._processes[id].alive:
                self._nodes[name] = _Node(name, [])

    def _write_nodes(self) -> None:
        found = {
            node.name: (node.allocation, [asdict(slot) for slot in node.slots])
            for node in self._nodes.values()
            if node.slots
        }
        path = self._shared.root / "nodes.json"
        beside = path.with_suffix(".new")
        with suppress(OSError):
            beside.write_text(json.dumps(found))
            beside.replace(path)


def _not_started(why: str) -> Exit:
    return Exit(code=None, at=time.time(), cause="not-started", message=why)
