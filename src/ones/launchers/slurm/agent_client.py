"""An agent's connection to the controller."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

from ones.exec.line_protocol import Connection
from ones.launchers.slurm.secure_connection import AGENT, SecureConnection
from ones.launchers.slurm.shared_directory import SharedDirectory

DIAL_SECONDS = 2.0

log = logging.getLogger(__name__)


class AgentClient:
    """Connects an agent to the controller; passes on messages of an authenticated one only."""

    def __init__(self, shared: SharedDirectory, node: str) -> None:
        self._shared, self._node = shared, node
        self._connection: SecureConnection | None = None
        self._is_secured = False  # both nonces are known
        self.is_registered = False
        self.last_message_at = time.monotonic()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def connections(self) -> list[Connection]:
        return [self._connection] if self._connection is not None else []

    def connect(self) -> str:
        """Connects. Returns this node's own address; empty if the controller is not reached."""
        address = self._shared.address()
        for host in address.hosts if address is not None else ():
            assert address is not None
            try:
                sock = socket.create_connection((host, address.port), timeout=DIAL_SECONDS)
            except OSError:
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own_address = str(sock.getsockname()[0])
            self._connection = SecureConnection(sock, raw=True)
            self.last_message_at = time.monotonic()
            self._connection.send({"node": self._node, "nonce": self._connection.nonce})
            return own_address
        return ""

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._is_secured, self.is_registered = None, False, False

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yields the controller's messages, first its welcome.

        Raises OSError or ValueError if the connection cannot be secured.
        """
        connection = self._connection
        if connection is None:
            return
        connection.flush()
        for message in connection.receive():
            if self._connection is not connection:
                return  # disconnected while a message was handled
            self.last_message_at = time.monotonic()
            if self._is_secured:
                yield message
                continue
            connection.secure(self._shared.key(), AGENT, self._node, message.get("nonce"))
            self._is_secured = True

    def register(self, description: dict[str, Any]) -> None:
        self.send({"event": "hello"})  # short; after it the server reads longer lines, too
        self.send(description)
        self.is_registered = True

    def send(self, message: dict[str, Any]) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def disconnect_if_closed(self) -> None:
        connection = self._connection
        if connection is not None and connection.closed:
            if not connection.is_authenticated:
                why = "controller not authenticated (wrong key, or another service on that port)"
                log.warning("disconnected", extra={"node": self._node, "reason": why})
            self.disconnect()
