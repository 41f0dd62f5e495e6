"""Answers the requests of launchers on the socket of ones-exec, and sends them events.

Only processes of the own user, of the service's user and of root may connect.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ones.exec.files import peer_uid
from ones.exec.line_protocol import Connection

log = logging.getLogger(__name__)


class FencedError(ValueError):
    """The lease of this node has expired: no worker of any job may run here."""


class RequestServer:
    """`answer` returns the fields of the answer to a request, or raises with the reason."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        answer: Callable[[dict[str, Any]], dict[str, Any]],
        service: int | None = None,
    ) -> None:
        self._allowed = {0, os.geteuid(), os.geteuid() if service is None else service}
        self._listener, self._selector, self._answer = listener, selector, answer
        self._connections: dict[Connection, bool] = {}  # whether it watches
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def broadcast(self, event: dict[str, Any]) -> None:
        """Sends an event to all launchers that watch."""
        for connection, watches in list(self._connections.items()):
            if watches:
                connection.send(event)

    def flush(self) -> None:
        for connection in list(self._connections):
            connection.flush()
            if connection.closed:
                del self._connections[connection]
                self._selector.unregister(connection)
                connection.close()
                continue
            events = selectors.EVENT_READ
            if connection.wants_to_write:
                events |= selectors.EVENT_WRITE
            key = self._selector.get_key(connection)
            if key.events != events:
                self._selector.modify(connection, events, key.data)

    def close(self) -> None:
        for connection in self._connections:
            connection.flush()
            connection.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                sock = self._listener.accept()[0]
                if (uid := peer_uid(sock)) not in self._allowed:
                    log.warning("connection refused", extra={"uid": uid})
                    sock.close()
                    continue
                connection = Connection(sock, raw=True)
                self._connections[connection] = False
                self._selector.register(
                    connection, selectors.EVENT_READ, lambda c=connection: self._receive(c)
                )

    def _receive(self, connection: Connection) -> None:
        for request in connection.receive():
            answer: dict[str, Any] = {"n": request.get("n")}
            try:
                answer |= {"ok": True, **self._answer(request)}
            except Exception as error:  # one request must not end the workers
                if not isinstance(error, OSError | ValueError):
                    log.exception("request failed", extra={"request": str(request.get("do"))[:40]})
                answer["error"] = str(error) or type(error).__name__
                answer["fenced"] = isinstance(error, FencedError)
            if request.get("do") == "watch":
                self._connections[connection] = True
            connection.send(answer)
