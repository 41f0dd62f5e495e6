"""Who asks, and whether they may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends, HTTPException, Request

from ones.control.accounts import User
from ones.control.readmodels.cards import JobCard
from ones.control.service import Service
from ones.control.store import Done
from ones.errors import UnknownNameError

COOKIE = "ones_session"
COMMIT_SECONDS = 15.0


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


TheService = Annotated[Service, Depends(service_of)]


def bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def user_of(request: Request, service: TheService) -> User:
    token = bearer(request)
    user = None
    if token is not None:
        user = service.accounts.by_token(token)
    elif COOKIE in request.cookies:
        user = service.accounts.by_session(request.cookies[COOKIE])
    if user is None:
        raise HTTPException(401, "no token, or a wrong one", {"WWW-Authenticate": "Bearer"})
    return user


TheUser = Annotated[User, Depends(user_of)]


def admin_of(user: TheUser) -> User:
    if not user.is_admin:
        raise HTTPException(403, f"{user.name} is not an admin")
    return user


TheAdmin = Annotated[User, Depends(admin_of)]


def job_of(job: str, service: TheService, user: TheUser) -> JobCard:
    """The job of the path, if this user may see it: one of somebody else is not there."""
    card = service.board.cards.get(job)
    if card is None or not service.may_see(user, card.owner):
        owner = None if user.is_admin else user.name
        near = service.board.listed(owner=owner, states=None, over=True, limit=1000)
        mine = [c.id for c in near[:1000]]
        raise UnknownNameError("job", job, mine)
    return card


TheJob = Annotated[JobCard, Depends(job_of)]


async def committed(start: Callable[[Done], None], service: Service) -> None:
    """Wait until what was started is safe; 503 if that takes too long."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(problem: Exception | None) -> None:
        if not future.done():
            if problem is None:
                future.set_result(None)
            else:
                future.set_exception(problem)

    def done(problem: Exception | None) -> None:
        loop.call_soon_threadsafe(settle, problem)

    start(done)
    try:
        await asyncio.wait_for(future, COMMIT_SECONDS)
    except TimeoutError:
        why = "; ".join(service.problems()) or "the scheduler is busy"
        raise HTTPException(503, f"not safe yet: {why}") from None
