"""Where training processes call: they report, and hear what to do next."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response

from ones.control.api.access import TheService, bearer, committed
from ones.control.live.jobs import LiveJob, LiveWorker, gpu_of
from ones.control.service import Service
from ones.core.job import JobId
from ones.wire import CodecError, Orders, Reports, pack, unpack
from ones.wire.messages import Order

router = APIRouter(tags=["workers"])

NO_PLACE = "this worker has no place in its job any more"


@router.post("/worker/reports", include_in_schema=False)
async def reports(
    request: Request, service: TheService, wait: Annotated[float, Query(ge=0, le=60)] = 0.0
) -> Response:
    """`Reports` in, `Orders` out; see `ones.wire.messages`."""
    try:
        message = unpack(await request.body())
    except CodecError as problem:
        raise HTTPException(422, str(problem)) from problem
    if not isinstance(message, Reports):
        raise HTTPException(422, "type: Reports are expected here")
    if not service.tokens.fits(message.job, bearer(request) or ""):
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
        order = await _wait_for_order(service, worker, message.seen, wait)
        service.engine.last_word[worker.launch] = time.monotonic()
    last = message.first + len(message.reports) - 1 if message.reports else worker.safe
    answer = Orders(acknowledged=last, order=order, store=job.store)
    return Response(pack(answer), media_type="application/json")


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


async def _wait_for_order(
    service: Service, worker: LiveWorker, seen: int, wait: float
) -> Order | None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    mailbox = service.engine.mailbox
    order = mailbox.wait(worker.launch, seen, lambda: loop.call_soon_threadsafe(arrived.set))
    if order is None:
        end = loop.time() + wait
        while not service.closing and loop.time() < end:
            try:
                await asyncio.wait_for(arrived.wait(), min(1.0, end - loop.time()))
                break
            except TimeoutError:
                continue
        order = mailbox.unseen(worker.launch, seen)
    return order
