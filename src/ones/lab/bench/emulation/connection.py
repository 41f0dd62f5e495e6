"""The kept-alive connection of an emulated worker, with one HTTP request at a time."""

from __future__ import annotations

import asyncio

from ones.errors import WorldError


class WorkerFencedError(WorldError):
    """The worker is not a member of its job any more (409)."""


class WorkerConnection(asyncio.Protocol):
    def __init__(self, token: str) -> None:
        self._head = (
            " HTTP/1.1\r\nHost: ones\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: "
        ).encode()
        self._buffer = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, address: tuple[str, int], token: str) -> WorkerConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(token), *address)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, body: bytes, wait: int) -> bytes:
        """Posts a message of the worker protocol and returns the body of the answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        head = b"POST /worker/reports?wait=%d%s%d\r\n\r\n" % (wait, self._head, len(body))
        self._transport.write(head + body)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < length or self._answer is None or self._answer.done():
            return
        self._buffer = b""
        status = head.split(b" ", 2)[1]
        if status == b"200":
            self._answer.set_result(body)
        else:
            error = WorkerFencedError if status == b"409" else WorldError
            self._answer.set_exception(error(f"the controller answered {status!r}: {body!r}"))

    def connection_lost(self, problem: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorldError(f"the connection was lost: {problem}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
