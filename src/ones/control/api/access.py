"""Authentication and authorisation of users' requests."""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Callable
from functools import partial
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request
from starlette.types import Scope

from ones.control.accounts import User
from ones.control.api.loop_waker import loop_waker
from ones.control.persistence import Done
from ones.control.readmodels.job_cards import JobCard
from ones.control.readmodels.reader import Reader
from ones.control.service import Service
from ones.errors import UnknownNameError

SAFE_METHODS = ("GET", "HEAD")
COMMIT_SECONDS = 15.0


# Dependencies are coroutines although they never wait: FastAPI runs a plain function in a thread,
# which costs more than the function itself.


async def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


#: record(action, subject, detail): writes one row of the audit log
Record = Callable[..., None]

TheService = Annotated[Service, Depends(service_of)]


def address_of(scope: Scope) -> str:
    """Address of the client."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def bearer(request: Request) -> str | None:
    return token_in(request.headers.get("authorization", ""))


def token_in(header: str) -> str | None:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def cookie_name(request: Request) -> str:
    """Name of the session cookie, with the port: a browser sends a host's cookies to all its ports,
    so two services on one machine would overwrite each other's."""
    port = request.url.port
    return f"ones_session_{port}" if port else "ones_session"


def _is_our_page(request: Request) -> bool:
    """Whether a request comes from the service's own page. Browsers also send the cookie with
    requests of pages on other ports of this host, which may belong to another user."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(request.headers.get("origin", ""))
    return bool(origin.netloc) and origin.netloc == request.headers.get("host")


def user_of(request: Request, service: TheService) -> User:
    """The user of a request, authenticated once: by the gate, before the body is read."""
    known = request.scope.get("ones.user")
    if known is None:
        known = request.scope["ones.user"] = _user_of(request, service)
    return cast(User, known)


def _user_of(request: Request, service: Service) -> User:
    token = bearer(request)
    if token is None and (uid := request.scope.get("ones.peer_uid")) is not None:
        return _user_of_peer(uid, service)
    user, secret = None, None
    if token is not None:
        user = service.accounts.by_token(token)
    elif (secret := request.cookies.get(cookie_name(request))) is not None:
        user = service.accounts.by_session(secret)
        if user is not None and request.method not in SAFE_METHODS and not _is_our_page(request):
            what = f"{request.method} {request.url.path} from the page of another site"
            service.audit.refused(user.name, "refused", what, address_of(request.scope))
            raise HTTPException(403, "refused: the request came from a page of another site")
    if user is None:
        if token is not None or secret is not None:
            what = "a wrong token" if token is not None else "an old session"
            service.audit.refused("", "login failed", what, address_of(request.scope))
        raise HTTPException(401, "missing or invalid token", {"WWW-Authenticate": "Bearer"})
    return user


def _user_of_peer(uid: int, service: Service) -> User:
    """The user with the Unix user at the other end of the socket, which the kernel vouches for."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"number {uid}"
    user = service.accounts.by_unix(name)
    if user is None:
        service.audit.refused("", "login failed", f"Unix user {name}", f"unix:{uid}")
        raise HTTPException(
            401, f"Unix user {name} is no user of this service; ask an admin to run:"
            f" ones user add {name} --unix {name}"
        )  # fmt: skip
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
    """A function that writes what this request did to the audit log."""

    def record(action: str, subject: str = "", detail: str = "") -> None:
        service.audit.record(user.name, action, subject, detail, address_of(request.scope))

    return record


TheRecord = Annotated[Record, Depends(recorder_of)]


def job_of(job: str, service: TheService, user: TheUser) -> JobCard:
    """The job of the path. A job that the user may not see is reported as unknown."""
    card = service.board.cards.get(job)
    if card is None or not service.may_see(user, card.owner):
        owner = None if user.is_admin else user.name
        near = service.board.listed(owner=owner, over=True, limit=1000)
        mine = [c.id for c in near[:1000]]
        raise UnknownNameError("job", job, mine)
    return card


def reader_of(service: Service, user: User) -> Reader:
    """Shows jobs and reasons as this user may see them."""
    return Reader(service.board, partial(service.may_see, user), service.utilisation.shown)


async def _job(job: str, service: TheService, user: TheUser) -> JobCard:
    return job_of(job, service, user)


TheJob = Annotated[JobCard, Depends(_job)]


async def committed(start: Callable[[Done], None], service: Service) -> None:
    """Wait until the started change is on disk; 503 after COMMIT_SECONDS."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waker = loop_waker()

    def settle(problem: Exception | None) -> None:
        if not future.done():
            if problem is None:
                future.set_result(None)
            else:
                future.set_exception(problem)

    def done(problem: Exception | None) -> None:
        waker.ring(partial(settle, problem))

    start(done)
    try:
        await asyncio.wait_for(future, COMMIT_SECONDS)
    except TimeoutError:
        why = "; ".join(service.problems()) or "the scheduler is busy"
        raise HTTPException(
            503, f"not on disk after {COMMIT_SECONDS:g} s: {why}; the change may still happen"
        ) from None
