"""The event stream of an open page: only one, because browsers limit connections to a host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query
from sse_starlette import EventSourceResponse

from ones.control.accounts import User
from ones.control.api.access import TheService, TheUser, job_of
from ones.control.page.feed import TAIL_BYTES, Feed, Output, to_json
from ones.control.readmodels.job_cards import JobCard
from ones.control.service import Service

router = APIRouter(include_in_schema=False)

#: time for which updates are collected before they are sent together
GATHER_SECONDS = 0.2
WAIT_SECONDS = 1.0


@router.get("/page/stream", response_class=EventSourceResponse)
async def stream(
    service: TheService,
    user: TheUser,
    job: Annotated[str | None, Query(max_length=200)] = None,
    launch: Annotated[str, Query(max_length=400)] = "",
    offset: Annotated[int, Query(ge=-(2**53), le=2**53)] = -TAIL_BYTES,
    pinned: bool = False,
) -> EventSourceResponse:
    """The event stream of a page. With `job`: also its history and curves, and the output of the
    process `launch` from `offset` on."""
    output = None
    if job is not None:
        job_of(job, service, user)
        output = Output(launch, offset, pinned and bool(launch))
    return EventSourceResponse(_news(service, user, Feed(service, user, job, output)), ping=15)


async def _news(service: Service, user: User, feed: Feed) -> AsyncIterator[dict[str, str]]:
    loop = asyncio.get_running_loop()
    changed: set[str] = set()
    woken = asyncio.Event()

    def note(job: str) -> None:
        changed.add(job)
        woken.set()

    def follower(card: JobCard) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has stopped
            loop.call_soon_threadsafe(note, card.id)

    unfollow = service.board.follow(follower)
    try:
        for name, value in await asyncio.to_thread(lambda: list(feed.first())):
            yield {"event": name, "data": to_json(value)}
        while not service.closing and service.accounts.is_current(user):
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), WAIT_SECONDS)
            woken.clear()
            if not service.accounts.is_current(user):
                return
            now, changed = changed, set()
            for name, value in await asyncio.to_thread(lambda jobs: list(feed.news(jobs)), now):
                yield {"event": name, "data": to_json(value)}
            await asyncio.sleep(GATHER_SECONDS)
    finally:
        unfollow()
