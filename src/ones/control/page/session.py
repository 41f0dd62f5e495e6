"""Logs a browser in, by a link that works once, and out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ones.control.accounts import SESSION_SECONDS
from ones.control.api.access import TheService, TheUser, address_of, cookie_name
from ones.control.page.render import ask_to_log_in

router = APIRouter(include_in_schema=False)


@router.get("/login")
def login(service: TheService, request: Request, code: str = "") -> Response:
    """Redeem a login link: the browser gets its cookie and is redirected to the page."""
    address = address_of(request.scope)
    redeemed = service.accounts.redeem(code)
    if redeemed is None:
        if code:
            service.audit.refused("", "login failed", "a link that is used, old or wrong", address)
        return ask_to_log_in("This link was used before, or is too old.")
    name, secret = redeemed
    service.audit.record(name, "login", address=address)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(
        cookie_name(request),
        secret,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
def logout(service: TheService, user: TheUser, request: Request) -> Response:
    """End the session: the cookie and all copies of it become invalid."""
    name = cookie_name(request)
    service.accounts.log_out(request.cookies.get(name, ""))
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(name, httponly=True, samesite="strict")
    return answer
