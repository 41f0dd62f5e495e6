"""Where training processes call: they report, and hear what to do next.

Nearly all requests are theirs, thousands of them waiting at a time, so they are answered
before the rest of the application looks at a request.
"""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from urllib.parse import parse_qsl

from fastapi import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from ones.control import logs
from ones.control.api.access import committed, token_in
from ones.control.api.bell import bell
from ones.control.api.errors import LARGEST_REQUEST, TOO_LARGE, status_of
from ones.control.live.jobs import LiveJob, LiveWorker, gpu_of
from ones.control.service import Service
from ones.core.job import JobId
from ones.errors import OnesError
from ones.exec.logs import Sparing
from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.messages import Order, Switch

PATH = "/worker/reports"
NO_PLACE = "this worker has no place in its job any more"
LONGEST_WAIT = 60.0
#: how often it is looked whether the service is to end, while workers wait
LOOK_SECONDS = 0.5

log = logs.logger(__name__)

_JSON = (b"content-type", b"application/json")
_HEAD = b'{"type":"Orders","acknowledged":'


class _GoneError(Exception):
    """Who asked does not listen any more."""


class WorkerDoor:
    """`Reports` in, `Orders` out; see `ones.wire.messages`."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._waiting: set[asyncio.Future[None]] = set()
        self._looks = False
        self._packed: tuple[Switch | None, bytes] = (None, b"")
        self._refusals = Sparing()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        status, headers = 200, []
        try:
            body = await self._answer(scope, receive)
        except _GoneError:
            return
        except HTTPException as problem:
            status, body = problem.status_code, _error(str(problem.detail))
            if (suppressed := self._refusals.suppressed()) is not None:
                log.warning("report refused", status=status, reason=str(problem.detail)[:500],
                            suppressed=suppressed)  # fmt: skip
            headers = [(k.encode(), v.encode()) for k, v in (problem.headers or {}).items()]
        except OnesError as problem:
            status, body = status_of(problem), _error(str(problem))
        headers += [_JSON, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        if scope["method"] != "POST":
            raise HTTPException(405, "Method Not Allowed", {"allow": "POST"})
        wait = _wait(scope["query_string"])
        try:
            message = unpack(await _body(receive))
        except CodecError as problem:
            raise HTTPException(422, str(problem)) from problem
        if not isinstance(message, Reports):
            raise HTTPException(422, "type: Reports are expected here")
        service = self._service
        if not service.tokens.fits(message.job, _token(scope)):
            raise HTTPException(401, f"the token is not that of job {message.job}")
        place = _place(service, message)
        if place is None:
            raise HTTPException(409, NO_PLACE)
        job, worker = place
        service.engine.last_word[worker.launch] = time.monotonic()
        if message.reports:
            await committed(lambda done: service.hear(message, done), service)
        order = service.engine.mailbox.unseen(worker.launch, message.seen)
        if order is None and not message.reports and wait > 0:
            order = await self._order(worker, message.seen, wait)
            service.engine.last_word[worker.launch] = time.monotonic()
        last = message.first + len(message.reports) - 1 if message.reports else worker.safe
        return self._orders(last, order, job.store)

    async def _order(self, worker: LiveWorker, seen: int, wait: float) -> Order | None:
        """The next one, if it comes in time and before the service ends."""
        loop, mailbox, rings = asyncio.get_running_loop(), self._service.engine.mailbox, bell()
        arrived: asyncio.Future[None] = loop.create_future()
        wake = partial(rings.ring, partial(_settle, arrived))
        order = mailbox.wait(worker.launch, seen, wake)
        if order is not None or self._service.closing:
            return order
        self._waiting.add(arrived)
        self._look_for_the_end(loop)
        late = loop.call_later(wait, _settle, arrived)
        try:
            await arrived
        finally:
            late.cancel()
            self._waiting.discard(arrived)
        return mailbox.unseen(worker.launch, seen)

    def _look_for_the_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """One look for all who wait: they must have gone when the server wants to end."""
        if not self._looks:
            self._looks = True
            loop.call_later(LOOK_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looks = False
        if self._service.closing:
            for arrived in self._waiting:
                _settle(arrived)
        elif self._waiting:
            self._look_for_the_end(loop)

    def _orders(self, acknowledged: int, order: Order | None, store: str) -> bytes:
        if not isinstance(order, Switch):
            return pack(Orders(acknowledged=acknowledged, order=order, store=store))
        # all members of a job get the same one, one after the other, and it names them all
        if order is not self._packed[0]:
            plain = pack(Orders(acknowledged=0, order=order))
            self._packed = order, plain.removeprefix(_HEAD + b"0")
        where = f',"store":{json.dumps(store)}' if store else ""
        return b"%s%d%s%s" % (_HEAD, acknowledged, where.encode(), self._packed[1])


def _settle(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


def _place(service: Service, message: Reports) -> tuple[LiveJob, LiveWorker] | None:
    """Reads what the brain's thread writes: single values, each of them whole."""
    job = service.engine.jobs.get(JobId(message.job))
    try:
        gpu = gpu_of(message.worker)
    except ValueError:
        raise HTTPException(422, f"worker: {message.worker!r} is not node/index") from None
    for worker in list(job.workers.values()) if job is not None else ():
        if gpu in worker.gpus and message.plan >= worker.plan:
            assert job is not None
            return job, worker
    return None


def _wait(query: bytes) -> float:
    text = dict(parse_qsl(query.decode("latin-1"))).get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LONGEST_WAIT:  # nor is it no number
        raise HTTPException(422, f"wait: 0 to {LONGEST_WAIT:g} seconds (got {text[:60]!r})")
    return seconds


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
            raise HTTPException(413, TOO_LARGE)
        if not message.get("more_body", False):
            return body


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode()
