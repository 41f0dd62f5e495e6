"""Who asks, and whether they may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request
from starlette.types import Scope

from ones.control.accounts import User
from ones.control.api.loop_waker import loop_waker
from ones.control.readmodels.job_cards import JobCard
from ones.control.service import Service
from ones.control.store import Done
from ones.errors import UnknownNameError

SAFE_METHODS = ("GET", "HEAD")
COMMIT_SECONDS = 15.0


# Dependencies are coroutines though they never wait: FastAPI runs a function in a thread of its
# own, which costs more than the function.


async def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


#: (what was done, to which user, job or place, how)
Record = Callable[..., None]

TheService = Annotated[Service, Depends(service_of)]


def address_of(scope: Scope) -> str:
    """Of the machine that sent a request."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def bearer(request: Request) -> str | None:
    return token_in(request.headers.get("authorization", ""))


def token_in(header: str) -> str | None:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def cookie_name(request: Request) -> str:
    """Browsers do not tell the ports of a host apart: without its port in the name, the cookies
    of two services on one machine would throw each other out."""
    port = request.url.port
    return f"ones_session_{port}" if port else "ones_session"


def _is_our_page(request: Request) -> bool:
    """A cookie comes with every request to this host, also from a page on another port of it,
    which may be somebody else's."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    return bool(origin.netloc) and origin.netloc == request.headers.get("host")


def user_of(request: Request, service: TheService) -> User:
    """Found once for each request: by the gate, before the body is read."""
    known = request.scope.get("ones.user")
    if known is None:
        known = request.scope["ones.user"] = _user_of(request, service)
    return cast(User, known)


def _user_of(request: Request, service: Service) -> User:
    token = bearer(request)
    user, secret = None, None
    if token is not None:
        user = service.accounts.by_token(token)
    elif (secret := request.cookies.get(cookie_name(request))) is not None:
        user = service.accounts.by_session(secret)
        if user is not None and request.method not in SAFE_METHODS and not _is_our_page(request):
            what = f"{request.method} {request.url.path} from the page of another site"
            service.audit.refused(user.name, "refused", what, address_of(request.scope))
            raise HTTPException(403, "a browser may ask this from the service's own page only")
    if user is None:
        if token is not None or secret is not None:
            what = "a wrong token" if token is not None else "an old session"
            service.audit.refused("", "login failed", what, address_of(request.scope))
        raise HTTPException(401, "no token, or a wrong one", {"WWW-Authenticate": "Bearer"})
    return user


async def _user(request: Request, service: TheService) -> User:
    return user_of(request, service)


TheUser = Annotated[User, Depends(_user)]


async def admin_of(user: TheUser, service: TheService, request: Request) -> User:
    if not user.is_admin:
        what = f"{request.method} {request.url.path}"
        service.audit.refused(user.name, "refused", what, address_of(request.scope))
        raise HTTPException(403, f"{user.name} is not an admin")
    return user


TheAdmin = Annotated[User, Depends(admin_of)]


async def recorder_of(request: Request, service: TheService, user: TheUser) -> Record:
    """Writes to the audit what this request did."""

    def record(action: str, subject: str = "", detail: str = "") -> None:
        service.audit.record(user.name, action, subject, detail, address_of(request.scope))

    return record


TheRecord = Annotated[Record, Depends(recorder_of)]


def job_of(job: str, service: TheService, user: TheUser) -> JobCard:
    """The job of the path, if this user may see it: one of somebody else is not there."""
    card = service.board.cards.get(job)
    if card is None or not service.may_see(user, card.owner):
        owner = None if user.is_admin else user.name
        near = service.board.listed(owner=owner, states=None, over=True, limit=1000)
        mine = [c.id for c in near[:1000]]
        raise UnknownNameError("job", job, mine)
    return card


async def _job(job: str, service: TheService, user: TheUser) -> JobCard:
    return job_of(job, service, user)


TheJob = Annotated[JobCard, Depends(_job)]


async def committed(start: Callable[[Done], None], service: Service) -> None:
    """Wait until what was started is safe; 503 if that takes too long."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    rings = loop_waker()

    def settle(problem: Exception | None) -> None:
        if not future.done():
            if problem is None:
                future.set_result(None)
            else:
                future.set_exception(problem)

    def done(problem: Exception | None) -> None:
        rings.ring(partial(settle, problem))

    start(done)
    try:
        await asyncio.wait_for(future, COMMIT_SECONDS)
    except TimeoutError:
        why = "; ".join(service.problems()) or "the scheduler is busy"
        raise HTTPException(503, f"not safe yet: {why}") from None
