"""Deadlines and a limit per address for connections; uvicorn's protocol has neither.

A connection that does not send all headers, or all of an announced body, in time is closed with
status 408. Responses have no deadline: long polls and event streams take as long as they need.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from ones.control.limits import Limits
from ones.exec.files import peer_uid


def guarded_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol class that uvicorn would choose, guarded, for `uvicorn.Config(http=...)`."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    return guarded(AutoHTTPProtocol, limits)


class GuardedServer(uvicorn.Server):
    """A server with the deadline of headers also for TLS handshakes. asyncio's default is one
    minute, and a connection is counted only after its handshake."""

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        super().__init__(config)
        self._seconds = limits.max_header_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop: Any = asyncio.get_running_loop()
        create_server = loop.create_server

        def create_guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            sock = kwargs.get("sock")
            if sock is not None and sock.family == socket.AF_UNIX:
                return loop.create_unix_server(*args, **{**kwargs, "ssl": None})
            if kwargs.get("ssl") is not None:
                kwargs["ssl_handshake_timeout"] = self._seconds
            return create_server(*args, **kwargs)

        loop.create_server = create_guarded
        try:
            await super().startup(sockets)
        finally:
            loop.create_server = create_server


def guarded(base: type[asyncio.Protocol], limits: Limits) -> type[asyncio.Protocol]:
    """The protocol class with the guard. Each server needs its own: it counts its connections."""
    values = {"limits": limits, "by_address": Counter()}
    return type(f"Guarded{base.__name__}", (_Guard, base), values)


def _with_peer(app: ASGIApp, uid: int) -> ASGIApp:
    """The application, with the user at the other end of the Unix socket in the scope."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope["ones.peer_uid"] = uid  # no header can set this
        await app(scope, receive, send)

    return call


class _Guard(asyncio.Protocol):
    """Mixin before uvicorn's class. It reads `cycle`, the last request that uvicorn has parsed."""

    limits: Limits
    by_address: Counter[str]
    # attributes of uvicorn's classes
    app: ASGIApp
    cycle: Any = None
    client: tuple[str, int] | None
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    _deadline: asyncio.TimerHandle | None = None
    _awaited: tuple[str, object] | None = None  # part and request of the deadline
    _address: str | None = None
    _has_sent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            uid = peer_uid(sock)
            self.client, self.app = (f"unix:{uid}", 0), _with_peer(self.app, uid)
        self._address = self.client[0] if self.client else ""
        self.by_address[self._address] += 1
        most = self.limits.max_connections_per_address
        if self.by_address[self._address] > most:
            problem = f"too many connections from {self._address}"
            self._refuse(503, f"{problem}; the limit is max_connections_per_address = {most}")
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._has_sent = True
        super().data_received(data)
        self._watch()

    def connection_lost(self, problem: Exception | None) -> None:
        self._unwatch()
        if self._address is not None:
            self.by_address[self._address] -= 1
            if not self.by_address[self._address]:
                del self.by_address[self._address]
            self._address = None
        super().connection_lost(problem)

    def _watch(self) -> None:
        """Set the deadline for the part that must arrive next."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            awaited, seconds = ("headers", cycle), self.limits.max_header_seconds
        elif cycle.more_body:
            awaited, seconds = ("body", cycle), self.limits.max_body_seconds
        else:
            self._unwatch()
            return
        if awaited != self._awaited:
            self._unwatch()
            self._awaited = awaited
            self._deadline = self.loop.call_later(seconds, self._late, awaited[0], seconds)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._awaited = None

    def _late(self, what: str, seconds: float) -> None:
        self._deadline = None
        setting = "max_header_seconds" if what == "headers" else "max_body_seconds"
        has_answer = self.cycle is not None and self.cycle.response_started
        if self._has_sent and not has_answer:
            self._refuse(408, f"the {what} came too late; the limit is {setting} = {seconds:g}")
        else:  # never used, or idle: the client does not expect a response
            self.transport.close()

    def _refuse(self, status: int, text: str) -> None:
        body = json.dumps({"error": text}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
