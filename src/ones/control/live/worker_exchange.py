"""Checks a worker's request (its reports) and builds the response (its next order).

This part never waits and has no transport: bytes in, bytes out. The HTTP servers
(`control.api.worker_api`, `lab.worker_server`) and the simulated network of `lab.faults` add the
waiting: until the reports are stored, and for an order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from ones.control.limits import LimitError, Limits, ReportRates
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import LiveJob, LiveWorker, gpu_of
from ones.control.persistence import Done
from ones.control.tokens import JobTokens
from ones.core.job import JobId
from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.messages import Order, Switch

PATH = "/worker/reports"
NOT_A_MEMBER = "this worker is no longer part of its job"
LONGEST_WAIT = 60.0
#: number of jobs with a stored report rate from which the rates of ended jobs are dropped
MOST_RATES = 10_000

_HEAD = b'{"type":"Orders","acknowledged":'


class RefusedRequestError(Exception):
    """A request that is answered with this HTTP status."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


class WorkerHost(Protocol):
    """The part of the controller that requests of workers need."""

    tokens: JobTokens
    limits: Limits

    @property
    def engine(self) -> LiveEngine: ...

    def report(self, message: Reports, done: Done) -> None: ...


@dataclass(frozen=True, slots=True)
class AdmittedWorker:
    """A valid message, and the job and the worker that sent it."""

    message: Reports
    job: LiveJob
    worker: LiveWorker


class WorkerExchange:
    """Answers requests of workers, in any thread.

    Reads tables of the scheduler's thread without a lock: each read is atomic. The engine of `host`
    may be made later, before the first request.
    """

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        self._rates = ReportRates(host.limits, self._monotonic)
        self._packed: tuple[Switch | None, bytes] = (None, b"")

    def _monotonic(self) -> float:
        return self._host.engine.live.clock.monotonic()

    def job_of(self, token: str) -> str:
        """The job of a token. Refuses an invalid token with 401, an ended job with 409."""
        job = self._host.tokens.job_of(token)
        if job is None:
            raise RefusedRequestError(
                401, "missing or invalid token of a job", {"WWW-Authenticate": "Bearer"}
            )
        if JobId(job) not in self._host.engine.live.jobs:
            raise RefusedRequestError(409, NOT_A_MEMBER)
        return job

    def admit(self, body: bytes, allowed: str) -> AdmittedWorker:
        """The message of a body, with its job and worker. `allowed`: the job of the token.

        Refuses an invalid message with 422, a message of another job with 401, and a worker that
        is no longer part of the job with 409. Raises LimitError for too many reports.
        """
        try:
            message = unpack(body)
        except CodecError as problem:
            raise RefusedRequestError(422, str(problem)) from problem
        if not isinstance(message, Reports):
            raise RefusedRequestError(422, f"type: {type(message).__name__} is not Reports")
        if message.job != allowed:
            raise RefusedRequestError(401, f"the token is not that of job {message.job}")
        admitted = self._find(message)
        self.note_call(admitted.worker)
        if message.reports:
            self._check_rate(admitted.job, len(message.reports))
        return admitted

    def _find(self, message: Reports) -> AdmittedWorker:
        try:
            gpu = gpu_of(message.worker)
        except ValueError:
            problem = f"worker: {message.worker!r} is not node/index"
            raise RefusedRequestError(422, problem) from None
        job = self._host.engine.live.jobs.get(JobId(message.job))
        if job is not None:
            for worker in list(job.workers.values()):
                if gpu in worker.gpus and message.plan >= worker.plan:
                    return AdmittedWorker(message, job, worker)
        raise RefusedRequestError(409, NOT_A_MEMBER)

    def _check_rate(self, job: LiveJob, reports: int) -> None:
        most = self._host.limits.max_reports_per_request
        if reports > most:
            problem = f"job {job.id}: {reports} reports in one request"
            raise LimitError(problem, "max_reports_per_request", most)
        self._rates.take(job.id, reports, len(job.workers))
        if len(self._rates) > max(MOST_RATES, 2 * len(self._host.engine.live.jobs)):
            self._rates.forget_others(self._host.engine.live.jobs)

    def note_call(self, worker: LiveWorker) -> None:
        """Note the time of a worker's request; a silent worker is killed."""
        live = self._host.engine.live
        live.last_call[worker.launch] = live.clock.monotonic()

    def unseen(self, admitted: AdmittedWorker) -> Order | None:
        mailbox = self._host.engine.live.mailbox
        return mailbox.unseen(admitted.worker.launch, admitted.message.seen)

    def answer(self, admitted: AdmittedWorker, order: Order | None) -> bytes:
        """The response, to be sent once the reports of the message are on disk."""
        message, worker = admitted.message, admitted.worker
        last = message.first + len(message.reports) - 1 if message.reports else worker.safe
        return self._orders(last, order, admitted.job.store)

    def _orders(self, acknowledged: int, order: Order | None, store: str) -> bytes:
        if not isinstance(order, Switch):
            return pack(Orders(acknowledged=acknowledged, order=order, store=store))
        # all members of a job get the same large message, so it is encoded once
        if order is not self._packed[0]:
            plain = pack(Orders(acknowledged=0, order=order))
            self._packed = order, plain.removeprefix(_HEAD + b"0")
        where = f',"store":{json.dumps(store)}' if store else ""
        return b"%s%d%s%s" % (_HEAD, acknowledged, where.encode(), self._packed[1])


def wait_seconds(query: str) -> float:
    """Seconds that a worker waits for an order, from the query of its request."""
    text = dict(parse_qsl(query)).get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LONGEST_WAIT:  # also refuses NaN
        problem = f"wait: {text[:60]!r} is not in 0..{LONGEST_WAIT:g} seconds"
        raise RefusedRequestError(422, problem)
    return seconds


def error_body(text: str) -> bytes:
    return json.dumps({"error": text}).encode()
