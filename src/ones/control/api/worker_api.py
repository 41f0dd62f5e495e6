"""The HTTP endpoint of workers: takes their reports and returns their orders.

Nearly all requests come from workers, and thousands of them wait at a time. So this layer answers
them before the rest of the application sees a request.
"""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from ones.control import logs
from ones.control.api.access import committed, token_in
from ones.control.api.errors import LARGEST_REQUEST, TOO_LARGE, headers_of, status_of
from ones.control.api.loop_waker import loop_waker
from ones.control.live.jobs import LiveWorker
from ones.control.live.worker_exchange import (
    PATH,
    RefusedRequestError,
    WorkerExchange,
    error_body,
    wait_seconds,
)
from ones.control.service import Service
from ones.errors import OnesError, described
from ones.exec.logs import LogLimiter
from ones.wire.messages import Order

#: interval of the check whether the service is closing, while workers wait
CLOSING_CHECK_SECONDS = 0.5

log = logs.logger(__name__)

_JSON = (b"content-type", b"application/json")


class _GoneError(Exception):
    """The client has disconnected."""


class WorkerApi:
    """ASGI middleware: answers `Reports` with `Orders`. See `ones.wire.messages`."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._exchange = WorkerExchange(service)
        self._waiting: set[asyncio.Future[None]] = set()
        self._checks_closing = False
        self._refusals = LogLimiter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        status, headers = 200, []
        try:
            body = await self._answer(scope, receive)
        except _GoneError:
            return
        except RefusedRequestError as problem:
            status, body = problem.status, error_body(problem.detail)
            if (suppressed := self._refusals.suppressed()) is not None:
                log.warning("report refused", status=status, reason=problem.detail[:500],
                            suppressed=suppressed)  # fmt: skip
            headers = [(k.encode(), v.encode()) for k, v in problem.headers.items()]
        except OnesError as problem:
            status, body = status_of(problem), error_body(str(problem))
            headers = [(k.encode(), v.encode()) for k, v in headers_of(problem).items()]
        except Exception as problem:  # must not affect other requests
            log.exception("worker request raised", error=described(problem))
            status, body = 500, error_body(f"internal error: {described(problem)}; see the log")
        if status >= 400:
            self._service.refused[status] += 1
        headers += [_JSON, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        if scope["method"] != "POST":
            raise RefusedRequestError(405, "Method Not Allowed", {"allow": "POST"})
        wait = wait_seconds(scope["query_string"].decode("latin-1"))
        exchange, service = self._exchange, self._service
        job = exchange.job_of(_token(scope))  # before the body is read
        admitted = exchange.admit(await _body(receive), job)
        message, worker = admitted.message, admitted.worker
        if message.reports:
            try:
                await committed(lambda done: service.report(message, done), service)
            except HTTPException as problem:
                raise RefusedRequestError(problem.status_code, str(problem.detail)) from problem
        order = exchange.unseen(admitted)
        if order is None and not message.reports and wait > 0:
            order = await self._order(worker, message.seen, wait)
            exchange.note_call(worker)
        return exchange.answer(admitted, order)

    async def _order(self, worker: LiveWorker, seen: int, wait: float) -> Order | None:
        """The worker's next order; None if none comes in time, or if the service is closing."""
        loop, mailbox = asyncio.get_running_loop(), self._service.engine.live.mailbox
        arrived: asyncio.Future[None] = loop.create_future()
        wake = partial(loop_waker().ring, partial(_settle, arrived))
        order = mailbox.wait(worker.launch, seen, wake)
        if order is not None or self._service.closing:
            return order
        self._waiting.add(arrived)
        self._check_closing_later(loop)
        late = loop.call_later(wait, _settle, arrived)
        try:
            await arrived
        finally:
            late.cancel()
            self._waiting.discard(arrived)
        return mailbox.unseen(worker.launch, seen)

    def _check_closing_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule one check for all waiting requests: they must end before the server can."""
        if not self._checks_closing:
            self._checks_closing = True
            loop.call_later(CLOSING_CHECK_SECONDS, self._check_closing, loop)

    def _check_closing(self, loop: asyncio.AbstractEventLoop) -> None:
        self._checks_closing = False
        if self._service.closing:
            for arrived in self._waiting:
                _settle(arrived)
        elif self._waiting:
            self._check_closing_later(loop)


def _settle(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


def _token(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return token_in(value.decode("latin-1")) or ""
    return ""


async def _body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _GoneError
        body += message.get("body", b"")
        if len(body) > LARGEST_REQUEST:
            raise RefusedRequestError(413, TOO_LARGE)
        if not message.get("more_body", False):
            return body
