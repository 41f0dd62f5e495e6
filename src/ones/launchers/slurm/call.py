"""An agent's line to the controller: the other side of the door."""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any

from ones.exec.line_protocol import MAX_LINE, MAX_UNAUTHENTICATED_LINE, Connection
from ones.launchers.slurm.shared import Shared, proof

DIAL_SECONDS = 2.0

log = logging.getLogger(__name__)


class Call:
    """Nothing is heard before whoever answers has proved that it is the controller."""

    def __init__(self, shared: Shared, node: str) -> None:
        self._shared, self._node = shared, node
        self._line: Connection | None = None
        self._nonce = ""
        self._is_proved = False
        self.is_registered = False  # we have proved it, too, and said who we are
        self.heard = time.monotonic()

    @property
    def is_up(self) -> bool:
        return self._line is not None

    @property
    def lines(self) -> list[Connection]:
        return [self._line] if self._line is not None else []

    def dial(self) -> str:
        """The address of ours that others see; empty: nobody answers."""
        address = self._shared.address()
        for host in address.hosts if address is not None else ():
            assert address is not None
            try:
                sock = socket.create_connection((host, address.port), timeout=DIAL_SECONDS)
            except OSError:
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            here = str(sock.getsockname()[0])
            self._line = Connection(sock, max_line=MAX_UNAUTHENTICATED_LINE, raw=True)
            self.heard = time.monotonic()
            self._nonce = secrets.token_hex(16)
            self._line.send({"node": self._node, "nonce": self._nonce})
            return here
        return ""

    def hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line, self._is_proved, self.is_registered = None, False, False

    def receive(self) -> Iterator[dict[str, Any]]:
        """First a welcome, then whatever the controller says until one of us hangs up."""
        line = self._line
        if line is None:
            return
        line.flush()
        for message in line.receive():
            if self._line is not line:
                return  # what came with the last word is not for us
            self.heard = time.monotonic()
            if not self._is_proved and not self._proves(message):
                log.warning("controller refused: wrong proof", extra={"node": self._node})
                self.hang_up()
                return
            self._is_proved = True
            line.max_line = MAX_LINE
            yield message

    def _proves(self, message: dict[str, Any]) -> bool:
        expected = proof(self._shared.key(), "controller", self._nonce, self._node)
        return message.get("do") == "welcome" and hmac.compare_digest(
            str(message.get("proof", "")).encode(errors="replace"), expected.encode()
        )

    def register(self, welcome: dict[str, Any], said: dict[str, Any]) -> None:
        """Answer the welcome with our proof, and say what there is to say of the node."""
        ours = proof(self._shared.key(), "agent", welcome["nonce"], self._node)
        self.send({"proof": ours})
        self.send(said)
        self.is_registered = True

    def send(self, message: dict[str, Any]) -> None:
        if self._line is not None:
            self._line.send(message)

    def end_if_closed(self) -> None:
        if self._line is not None and self._line.closed:
            self.hang_up()
