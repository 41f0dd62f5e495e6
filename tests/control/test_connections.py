"""Connections over real sockets: deadlines for headers and bodies, and a limit per address."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ones.config import ServiceSettings
from ones.control.api.connections import GuardedServer, guarded
from ones.control.certificates import Pair, own_pair
from ones.control.limits import Limits
from tests.asynchronous import run_apart

SHORT = 0.5  # of the deadline under test; the others are an hour
HOUR = 3600.0
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


def protocols() -> list[Any]:
    found: list[Any] = [H11Protocol]
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return found
    return [*found, HttpToolsProtocol]


class Server:
    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.bodies: list[bytes] = []
        self.gone = 0
        self.lines: list[Line] = []

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers when the body is complete and, for /slow, when the test releases it."""
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        if scope["path"] == "/slow":
            await self.release.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def line(self) -> Line:
        self.lines.append(await asyncio.open_connection("127.0.0.1", self.port))
        return self.lines[-1]

    port = 0


def serve(
    base: Any,  # noqa: ANN401
    story: Callable[[Server], Awaitable[None]],
    pair: Pair | None = None,
    **settings: float,
) -> None:
    plain = {"max_header_seconds": HOUR, "max_body_seconds": HOUR, **settings}
    limits = Limits.of(ServiceSettings(**plain))  # type: ignore[arg-type]

    async def run() -> None:
        made = Server()
        config = uvicorn.Config(
            made.app,
            interface="asgi3",
            http=guarded(base, limits),
            ws="none",
            lifespan="off",
            log_level="critical",
            ssl_certfile=pair.certificate if pair else None,
            ssl_keyfile=str(pair.key) if pair else None,
        )
        server = GuardedServer(config, limits)
        listener = socket.create_server(("127.0.0.1", 0))
        made.port = listener.getsockname()[1]
        serving = asyncio.create_task(server._serve([listener]))
        try:
            await asyncio.wait_for(story(made), 60)
        finally:
            made.release.set()
            for _, writer in made.lines:
                writer.close()
            server.should_exit = server.force_exit = True
            await serving
            listener.close()

    run_apart(run())


async def answer(line: Line) -> tuple[int, str]:
    """Status and error of the next answer, which has to say how long it is."""
    head = await line[0].readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = await line[0].readexactly(length)
    status = int(head.split(b" ", 2)[1])
    return status, body.decode() if status == 200 else json.loads(body)["error"]


@pytest.mark.parametrize("base", protocols())
def test_headers_have_to_come_in_time(base: Any) -> None:  # noqa: ANN401
    async def story(server: Server) -> None:
        half, silent, kept = [await server.line() for _ in range(3)]
        half[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n")
        kept[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await answer(kept) == (200, "ok")
        told = "the headers came too late; the limit is max_header_seconds = 0.5"
        assert await answer(half) == (408, told)
        assert await half[0].read() == b"", "and it is closed"
        assert await silent[0].read() == b"", "closed without an answer that was not requested"
        kept[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await answer(kept) == (200, "ok"), "idle after an answer is something else"
        kept[1].write(b"GET / HTT")
        assert await kept[0].read() == b"", "but half of a second request is not"

    serve(base, story, max_header_seconds=SHORT)


@pytest.mark.parametrize("base", protocols())
def test_bodies_have_to_come_in_time_and_answers_have_not(base: Any) -> None:  # noqa: ANN401
    async def story(server: Server) -> None:
        slow, late = await server.line(), await server.line()
        slow[1].write(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        late[1].write(HEAD % 10 + b"12345")
        told = "the body came too late; the limit is max_body_seconds = 0.5"
        assert await answer(late) == (408, told)
        assert await late[0].read() == b""
        while not server.gone:  # the application hears of it
            await asyncio.sleep(0.001)
        server.release.set()
        assert await answer(slow) == (200, "ok"), "a long answer has all the time"
        slow[1].write(HEAD % 4 + b"12")
        await slow[1].drain()
        slow[1].write(b"34")
        assert await answer(slow) == (200, "ok")
        assert server.bodies == [b"", b"1234"]

    serve(base, story, max_body_seconds=SHORT)


@pytest.mark.parametrize("base", protocols())
def test_an_address_has_a_limit_of_connections(base: Any) -> None:  # noqa: ANN401
    async def story(server: Server) -> None:
        lines = [await server.line() for _ in range(2)]
        for line in lines:
            line[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await answer(line) == (200, "ok")
        third = await server.line()
        told = "too many connections from 127.0.0.1"
        limit = "the limit is max_connections_per_address = 2"
        assert await answer(third) == (503, f"{told}; {limit}")
        assert await third[0].read() == b""
        lines[0][1].close()
        while True:  # until the server has seen that one went
            fourth = await server.line()
            fourth[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                if await answer(fourth) == (200, "ok"):
                    break

    serve(base, story, max_connections_per_address=2)


@pytest.mark.parametrize("base", protocols())
def test_a_handshake_of_tls_has_to_come_in_time(base: Any, tmp_path: Path) -> None:  # noqa: ANN401
    pair = own_pair(tmp_path, {"localhost"})
    trusting = ssl.create_default_context(cafile=str(pair.authority))

    async def story(server: Server) -> None:
        silent = await server.line()
        assert await silent[0].read() == b"", "closed"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=trusting, server_hostname="localhost"
        )
        server.lines.append((reader, writer))
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await answer((reader, writer)) == (200, "ok")

    serve(base, story, pair, max_header_seconds=SHORT)
