"""Where agents call. Both sides prove that they have the key of the shared directory, each for a
word that the other has just made up, before anything else is said or believed.

    agent:       {"node": "n1", "nonce": "..."}
    controller:  {"do": "welcome", "nonce": "...", "proof": "...", "probes": [[DIRECTORY, WORD]]}
    agent:       {"proof": "...", "allocation": ..., "slots": [...], "launches": [...], ...}
"""

from __future__ import annotations

import hmac
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ones.errors import WorldError
from ones.exec.lines import Connection
from ones.launchers.slurm.options import SlurmOptions
from ones.launchers.slurm.shared import AgentsAddress, Shared, proof


@dataclass(frozen=True, slots=True)
class Arrival:
    """An agent that has proved who it is."""

    node: str
    line: Connection
    said: dict[str, Any]  # of its node, with the proof
    more: list[dict[str, Any]]  # what came with it


@dataclass(slots=True)
class _Caller:
    """Somebody on the line who has not proved yet who it is."""

    line: Connection
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    node: str = ""
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
            with guarded(caller.line):
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
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._callers.append(_Caller(Connection(sock)))

    def _is_slow(self, caller: _Caller) -> bool:
        return time.monotonic() - caller.since > self._options.timing.condemn

    def _attend(self, caller: _Caller) -> Arrival | None:
        caller.line.flush()
        messages = caller.line.receive()
        for message in messages:
            if not caller.node:
                self._welcome(caller, message)
                continue
            expected = proof(self._key, "agent", caller.nonce, caller.node)
            if hmac.compare_digest(str(message.get("proof", "")), expected):
                return Arrival(caller.node, caller.line, message, list(messages))
            caller.line.closed = True
            break
        return None

    def _welcome(self, caller: _Caller, message: dict[str, Any]) -> None:
        caller.node = str(message.get("node", ""))
        nonce = str(message.get("nonce", ""))
        caller.line.send(
            {
                "do": "welcome",
                "nonce": caller.nonce,
                "proof": proof(self._key, "controller", nonce, caller.node),
                "probes": [[p.directory, p.word] for p in self._options.probes],
            }
        )


@contextmanager
def guarded(line: Connection) -> Iterator[None]:
    """Whoever talks nonsense is not talked to any more."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as problem:
        print(f"an agent said what nobody understands: {problem!r}", file=sys.stderr)
        line.closed = True
