"""The controller's server for agents. Agents authenticate with the key of the shared directory.

After the handshake (`secure_connection`):

    controller:  {"do": "welcome", "probes": [[DIRECTORY, CONTENT]]}
    agent:       {"event": "hello"}
    agent:       {"allocation": ..., "slots": [...], "launches": [...], ...}

Before an agent is authenticated, its lines have at most 4 KB. An invalid message closes that
connection and is logged; the thread goes on.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ones.errors import WorldError
from ones.exec.line_protocol import Connection
from ones.exec.logs import LogLimiter
from ones.launchers.slurm.secure_connection import CONTROLLER, SecureConnection
from ones.launchers.slurm.settings import SlurmOptions
from ones.launchers.slurm.shared_directory import AgentsAddress, SharedDirectory

#: maximum number of connections that are not authenticated yet
MOST_CALLERS = 1024
LONGEST_NAME = 255

log = logging.getLogger(__name__)
_refusals = LogLimiter()


@dataclass(frozen=True, slots=True)
class AgentRegistration:
    """An authenticated agent and its description of the node."""

    node: str
    connection: Connection
    description: dict[str, Any]
    more: list[dict[str, Any]]  # messages that arrived with it


@dataclass(slots=True)
class _Caller:
    """A connection without a registration."""

    connection: SecureConnection
    node: str = ""
    since: float = field(default_factory=time.monotonic)


class AgentServer:
    def __init__(self, shared: SharedDirectory, options: SlurmOptions) -> None:
        self._shared, self._options = shared, options
        try:
            self._key = shared.key()
        except OSError as problem:
            raise WorldError(f"key of the node agents: {problem}") from problem
        self._callers: list[_Caller] = []
        self._sock = self._listen()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def connections(self) -> list[Connection]:
        return [caller.connection for caller in self._callers]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self._sock.close()

    def _listen(self) -> socket.socket:
        """Listens on the port of the earlier controller, if it is free: agents know that one."""
        before = self._shared.address()
        for port in [before.port, 0] if before is not None else [0]:
            try:
                sock = socket.create_server((self._options.host, port), backlog=512)
            except OSError as problem:
                if port:
                    continue
                raise WorldError(
                    f"cannot listen for node agents on {self._options.host}:"
                    f" {problem.strerror or problem}"
                ) from problem
            break
        sock.setblocking(False)
        host = self._options.advertise or self._options.host
        hosts = [socket.gethostname()] if host in ("0.0.0.0", "::", "") else [host]
        self._shared.write_address(AgentsAddress(port=sock.getsockname()[1], hosts=hosts))
        return sock

    def registrations(self) -> list[AgentRegistration]:
        """Agents that have registered since the last call."""
        self._accept()
        found = []
        for caller in list(self._callers):
            registration = None
            with guarded(caller.connection, caller.node):
                registration = self._serve(caller)
            if registration is not None:
                found.append(registration)
                self._callers.remove(caller)
            elif caller.connection.closed or self._is_slow(caller):
                caller.connection.close()
                self._callers.remove(caller)
        return found

    def _accept(self) -> None:
        with suppress(OSError):  # no connection is waiting
            while True:
                sock, _ = self._sock.accept()
                if len(self._callers) >= MOST_CALLERS:
                    sock.close()
                    continue
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._callers.append(_Caller(SecureConnection(sock)))

    def _is_slow(self, caller: _Caller) -> bool:
        return time.monotonic() - caller.since > self._options.timing.condemn

    def _serve(self, caller: _Caller) -> AgentRegistration | None:
        connection = caller.connection
        connection.flush()
        messages = connection.receive()
        for message in messages:
            if not caller.node:
                self._welcome(caller, message)
            elif message.get("event") != "hello":
                return AgentRegistration(caller.node, connection, message, list(messages))
        return None

    def _welcome(self, caller: _Caller, message: dict[str, Any]) -> None:
        caller.node, connection = _node_name(message.get("node")), caller.connection
        connection.send({"nonce": connection.nonce})
        connection.secure(self._key, CONTROLLER, caller.node, message.get("nonce"))
        probes = [[p.directory, p.content] for p in self._options.probes]
        connection.send({"do": "welcome", "probes": probes})


def _node_name(value: object) -> str:
    """The name of a node. Raises ValueError if it cannot be the name of a file."""
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME:
        raise ValueError(f"the name of a node must have 1 to {LONGEST_NAME} characters")
    if "/" in value or value.startswith(".") or not value.isprintable():
        raise ValueError(f"node {value!r}: the name cannot be that of a file")
    return value


@contextmanager
def guarded(connection: Connection, node: str = "") -> Iterator[None]:
    """An exception ends this connection and nothing else."""
    try:
        yield
    except Exception as problem:
        connection.closed = True
        if (more := _refusals.suppressed()) is not None:
            why = f"{type(problem).__name__}: {problem}"[:200]
            about = {"node": node, "reason": why, "suppressed": more}
            log.warning("invalid message from agent, connection closed", extra=about)
