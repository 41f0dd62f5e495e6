"""Where training processes call: they report, and hear what to do next.

Nearly all requests are theirs, thousands of them waiting at a time, so they are answered
before the rest of the application looks at a request.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qsl

from fastapi import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from ones.control import logs
from ones.control.api.access import committed, token_in
from ones.control.api.errors import LARGEST_REQUEST, TOO_LARGE, headers_of, status_of
from ones.control.api.loop_waker import loop_waker
from ones.control.controller import Controller
from ones.control.limits import LimitError, ReportRates
from ones.control.live.jobs import LiveJob, LiveWorker, gpu_of
from ones.control.service import Service
from ones.core.job import JobId
from ones.errors import OnesError, described
from ones.exec.logs import LogLimiter
from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.messages import Order, Switch

PATH = "/worker/reports"
NO_PLACE = "this worker has no place in its job any more"
LONGEST_WAIT = 60.0
#: how often it is looked whether the service is to end, while workers wait
LOOK_SECONDS = 0.5
#: jobs whose rates are kept before those that have ended are looked for
MOST_RATES = 10_000

log = logs.logger(__name__)

_JSON = (b"content-type", b"application/json")
_HEAD = b'{"type":"Orders","acknowledged":'


class _GoneError(Exception):
    """Who asked does not listen any more."""


@dataclass(frozen=True, slots=True)
class AdmittedWorker:
    """A valid message, and the place of the worker that sent it."""

    message: Reports
    job: LiveJob
    worker: LiveWorker


class WorkerExchange:
    """The part of an exchange with a worker that waits for nothing: bytes in, bytes out."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._rates = ReportRates(controller.limits, self._monotonic)
        self._packed: tuple[Switch | None, bytes] = (None, b"")

    def _monotonic(self) -> float:
        return self._controller.engine.live.clock.monotonic()  # there from `load` on

    def job_of(self, token: str) -> str:
        """The job that may report with this token; known before the body is read."""
        job = self._controller.tokens.job_of(token)
        if job is None:
            raise HTTPException(
                401, "the token is not that of a job", {"WWW-Authenticate": "Bearer"}
            )
        if JobId(job) not in self._controller.engine.live.jobs:
            raise HTTPException(409, NO_PLACE)
        return job

    def admit(self, body: bytes, allowed: str) -> AdmittedWorker:
        """`allowed`: the job that may report. Raises 422 for what is no message, 401 for another
        job's, 409 without a place, LimitError for too many reports."""
        try:
            message = unpack(body)
        except CodecError as problem:
            raise HTTPException(422, str(problem)) from problem
        if not isinstance(message, Reports):
            raise HTTPException(422, "type: Reports are expected here")
        if message.job != allowed:
            raise HTTPException(401, f"the token is not that of job {message.job}")
        place = _place(self._controller, message)
        if place is None:
            raise HTTPException(409, NO_PLACE)
        admitted = AdmittedWorker(message, *place)
        self.heard_from(admitted.worker)
        if message.reports:
            self._check_rate(admitted.job, len(message.reports))
        return admitted

    def _check_rate(self, job: LiveJob, reports: int) -> None:
        most = self._controller.limits.max_reports_per_request
        if reports > most:
            problem = f"job {job.id}: {reports} reports in one request are too many"
            raise LimitError(problem, "max_reports_per_request", most)
        self._rates.take(job.id, reports, len(job.workers))
        if len(self._rates) > max(MOST_RATES, 2 * len(self._controller.engine.live.jobs)):
            self._rates.forget_others(self._controller.engine.live.jobs)

    def heard_from(self, worker: LiveWorker) -> None:
        live = self._controller.engine.live
        live.last_call[worker.launch] = live.clock.monotonic()

    def unseen(self, admitted: AdmittedWorker) -> Order | None:
        mailbox = self._controller.engine.live.mailbox
        return mailbox.unseen(admitted.worker.launch, admitted.message.seen)

    def answer(self, admitted: AdmittedWorker, order: Order | None) -> bytes:
        """Once the reports of the message are safe."""
        message, worker = admitted.message, admitted.worker
        last = message.first + len(message.reports) - 1 if message.reports else worker.safe
        return self._orders(last, order, admitted.job.store)

    def _orders(self, acknowledged: int, order: Order | None, store: str) -> bytes:
        if not isinstance(order, Switch):
            return pack(Orders(acknowledged=acknowledged, order=order, store=store))
        # all members of a job get the same one, one after the other, and it names them all
        if order is not self._packed[0]:
            plain = pack(Orders(acknowledged=0, order=order))
            self._packed = order, plain.removeprefix(_HEAD + b"0")
        where = f',"store":{json.dumps(store)}' if store else ""
        return b"%s%d%s%s" % (_HEAD, acknowledged, where.encode(), self._packed[1])


class WorkerApi:
    """`Reports` in, `Orders` out; see `ones.wire.messages`."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._exchange = WorkerExchange(service)
        self._waiting: set[asyncio.Future[None]] = set()
        self._looks = False
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
        except HTTPException as problem:
            status, body = problem.status_code, _error(str(problem.detail))
            if (suppressed := self._refusals.suppressed()) is not None:
                log.warning("report refused", status=status, reason=str(problem.detail)[:500],
                            suppressed=suppressed)  # fmt: skip
            headers = [(k.encode(), v.encode()) for k, v in (problem.headers or {}).items()]
        except OnesError as problem:
            status, body = status_of(problem), _error(str(problem))
            headers = [(k.encode(), v.encode()) for k, v in headers_of(problem).items()]
        except Exception as problem:  # one request's: the others, and the service, go on
            log.exception("worker request raised", error=described(problem))
            status, body = 500, _error(f"the request could not be handled: {described(problem)}")
        if status >= 400:
            self._service.refused[status] += 1
        headers += [_JSON, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        if scope["method"] != "POST":
            raise HTTPException(405, "Method Not Allowed", {"allow": "POST"})
        wait = _wait(scope["query_string"])
        exchange, service = self._exchange, self._service
        job = exchange.job_of(_token(scope))  # before the body is read
        admitted = exchange.admit(await _body(receive), job)
        message, worker = admitted.message, admitted.worker
        if message.reports:
            await committed(lambda done: service.report(message, done), service)
        order = exchange.unseen(admitted)
        if order is None and not message.reports and wait > 0:
            order = await self._order(worker, message.seen, wait)
            exchange.heard_from(worker)
        return exchange.answer(admitted, order)

    async def _order(self, worker: LiveWorker, seen: int, wait: float) -> Order | None:
        """The next one, if it comes in time and before the service ends."""
        loop, mailbox, rings = (
            asyncio.get_running_loop(),
            self._service.engine.live.mailbox,
            loop_waker(),
        )
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


def _settle(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


def _place(service: Controller, message: Reports) -> tuple[LiveJob, LiveWorker] | None:
    """Reads what the scheduler's thread writes: single values, each of them whole."""
    job = service.engine.live.jobs.get(JobId(message.job))
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
