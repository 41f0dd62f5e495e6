"""Where agents call. Both sides prove that they have the key of the shared directory, each for a
word that the other has just made up, before anything else is said or believed.

    agent:       {"node": "n1", "nonce": "..."}
    controller:  {"do": "welcome", "nonce": "...", "proof": "...", "probes": [[DIRECTORY, WORD]]}
    agent:       {"proof": "..."}
    agent:       {"allocation": ..., "slots": [...], "launches": [...], ...}

Until its proof a line of an agent has at most 4 KB. Whatever an agent sends, its connection is
closed and the reason logged: the thread goes on.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ones.errors import WorldError
from ones.exec.line_protocol import MAX_LINE, MAX_UNAUTHENTICATED_LINE, Connection
from ones.exec.logs import LogLimiter
from ones.launchers.slurm.options import SlurmOptions
from ones.launchers.slurm.shared import AgentsAddress, Shared, proof

#: connections that have not proved anything yet
MOST_CALLERS = 1024
LONGEST_NAME = 255

log = logging.getLogger(__name__)
_refusals = LogLimiter()


@dataclass(frozen=True, slots=True)
class Arrival:
    """An agent that has proved who it is."""

    node: str
    line: Connection
    said: dict[str, Any]  # of its node
    more: list[dict[str, Any]]  # what came with it


@dataclass(slots=True)
class _Caller:
    """Somebody on the line who has not proved yet who it is."""

    line: Connection
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    node: str = ""
    is_proved: bool = False
    since: float = field(default_factory=time.monotonic)


class Door:
    def __init__(self, shared: Shared, options: SlurmOptions) -> None:
        self._shared, self._options = shared, options
        self._key = shared.key()
        self._callers: list[_Caller] = []
        self._sock = self._listen()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def lines(self) -> list[Connection]:
        return [caller.line for caller in self._callers]

    def close(self) -> None:
        for line in self.lines:
            line.close()
        self._sock.close()

    def _listen(self) -> socket.socket:
        """Where agents look for us already, if that can be had."""
        before = self._shared.address()
        for port in [before.port, 0] if before is not None else [0]:
            try:
                sock = socket.create_server((self._options.host, port), backlog=512)
            except OSError as problem:
                if port:
                    continue
                raise WorldError(
                    f"{self._options.host}: cannot listen to agents: {problem.strerror or problem}"
                ) from problem
            break
        sock.setblocking(False)
        host = self._options.advertise or self._options.host
        hosts = [socket.gethostname()] if host in ("0.0.0.0", "::", "") else [host]
        self._shared.write_address(AgentsAddress(port=sock.getsockname()[1], hosts=hosts))
        return sock

    # who calls

    def arrivals(self) -> list[Arrival]:
        """Those who have proved since the last time who they are."""
        self._accept()
        found = []
        for caller in list(self._callers):
            arrival = None
            with guarded(caller.line, caller.node):
                arrival = self._attend(caller)
            if arrival is not None:
                found.append(arrival)
                self._callers.remove(caller)
            elif caller.line.closed or self._is_slow(caller):
                caller.line.close()
                self._callers.remove(caller)
        return found

    def _accept(self) -> None:
        with suppress(OSError):  # nobody else is there
            while True:
                sock, _ = self._sock.accept()
                if len(self._callers) >= MOST_CALLERS:
                    sock.close()
                    continue
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._callers.append(_Caller(Connection(sock, max_line=MAX_UNAUTHENTICATED_LINE)))

    def _is_slow(self, caller: _Caller) -> bool:
        return time.monotonic() - caller.since > self._options.timing.condemn

    def _attend(self, caller: _Caller) -> Arrival | None:
        caller.line.flush()
        messages = caller.line.receive()
        for message in messages:
            if not caller.node:
                self._welcome(caller, message)
            elif caller.is_proved:
                return Arrival(caller.node, caller.line, message, list(messages))
            elif self._proves(caller, message):
                caller.is_proved = True
                caller.line.max_line = MAX_LINE
                if "slots" in message:  # an agent of an earlier version says all in one line
                    return Arrival(caller.node, caller.line, message, list(messages))
            else:
                raise ValueError("wrong proof")
        return None

    def _proves(self, caller: _Caller, message: dict[str, Any]) -> bool:
        expected = proof(self._key, "agent", caller.nonce, caller.node)
        return hmac.compare_digest(str(message.get("proof", "")).encode(), expected.encode())

    def _welcome(self, caller: _Caller, message: dict[str, Any]) -> None:
        caller.node, nonce = _name(message.get("node")), str(message.get("nonce", ""))
        caller.line.send(
            {
                "do": "welcome",
                "nonce": caller.nonce,
                "proof": proof(self._key, "controller", nonce, caller.node),
                "probes": [[p.directory, p.word] for p in self._options.probes],
            }
        )


def _name(value: object) -> str:
    """Of a node: it becomes the name of a file. Raises ValueError if it cannot be one."""
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME:
        raise ValueError("a node's name has 1 to 255 characters")
    if "/" in value or value.startswith(".") or not value.isprintable():
        raise ValueError(f"node {value!r}: the name is not that of a file")
    return value


@contextmanager
def guarded(line: Connection, node: str = "") -> Iterator[None]:
    """What cannot be understood, whatever it raises, ends this connection and nothing else."""
    try:
        yield
    except Exception as problem:
        line.closed = True
        if (more := _refusals.suppressed()) is not None:
            why = f"{type(problem).__name__}: {problem}"[:200]
            about = {"node": node, "reason": why, "suppressed": more}
            log.warning("invalid message from agent, connection closed", extra=about)
