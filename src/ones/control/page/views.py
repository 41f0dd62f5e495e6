"""The pages: HTML frames with fixed content; JavaScript modules fill in the live content."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from ones.control.accounts import User
from ones.control.api.access import TheService, job_of, user_of
from ones.control.api.description import operations_of, shapes_of
from ones.control.api.usage import MONTH
from ones.control.page.render import ask_to_log_in, html
from ones.control.service import Service
from ones.control.usage import ALL
from ones.errors import UnknownNameError
from ones.policies import names

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def overview(request: Request, service: TheService) -> HTMLResponse:
    return _shown(request, service, "overview.html")


@router.get("/curves")
def curves(request: Request, service: TheService) -> HTMLResponse:
    return _shown(request, service, "curves.html")


@router.get("/timeline")
def timeline(request: Request, service: TheService) -> HTMLResponse:
    return _shown(request, service, "timeline.html")


@router.get("/decisions")
def decisions(request: Request, service: TheService) -> HTMLResponse:
    return _shown(request, service, "decisions.html")


@router.get("/history")
def history(request: Request, service: TheService) -> HTMLResponse:
    return _shown(request, service, "history.html")


@router.get("/whatif")
def whatif(request: Request, service: TheService) -> HTMLResponse:
    known = names()
    chosen = next((name for name in known if name != service.policy), "")
    return _shown(request, service, "whatif.html", policies=known, chosen=chosen)


@router.get("/usage")
def usage(request: Request, service: TheService) -> HTMLResponse:
    user = _visitor(request, service)
    if user is None:
        return ask_to_log_in()
    live, now = service.board.live(), service.clock.now()
    owner = None if user.is_admin else user.name
    rows = [
        row
        for row in service.usage.rows(live, since=now - MONTH, until=now, user=owner)
        if row.tag == ALL
    ]
    hours: dict[str, float] = defaultdict(float)
    days: dict[str, float] = defaultdict(float)
    for row in rows:
        hours[row.user] += row.gpu_hours
        days[row.day] += row.gpu_hours
    users = [
        {
            "user": name,
            "hours": total,
            "month": service.usage.used_this_month(name, live),
            "budget": service.usage.budget(name),
        }
        for name, total in sorted(hours.items(), key=lambda pair: -pair[1])
    ]
    return _shown(
        request,
        service,
        "usage.html",
        users=users,
        days=sorted(days.items(), reverse=True),
        shares=[each for each in service.shares() if service.may_see(user, each.owner)],
        half_life=service.scheduler.state.fair_share.half_life,
    )


@router.get("/jobs/{job}")
def job(job: str, request: Request, service: TheService) -> HTMLResponse:
    user = _visitor(request, service)
    if user is None:
        return ask_to_log_in()
    try:
        card = job_of(job, service, user)
    except UnknownNameError as problem:
        return _shown(request, service, "unknown.html", 404, problem=str(problem))
    return _shown(
        request, service, "job.html", card=card, submission=service.board.submission(card.id)
    )


@router.get("/docs")
def interface(request: Request) -> HTMLResponse:
    """The API description. Open without login: it has no data of this service."""
    openapi = request.app.openapi()
    shapes = shapes_of(openapi)
    return html(
        "interface.html",
        operations=operations_of(openapi),
        shapes=shapes,
        names={shape.name for shape in shapes},
    )


def not_found(request: Request, problem: Exception) -> Response:
    """The response for an unknown path: a page for browsers, JSON for other clients."""
    assert isinstance(problem, StarletteHTTPException)
    path = request.url.path
    if path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"error": str(problem.detail)}, problem.status_code)
    service = request.app.state.service
    return _shown(request, service, "unknown.html", 404, problem=f"There is no page {path}")


def _visitor(request: Request, service: Service) -> User | None:
    try:
        return user_of(request, service)
    except HTTPException:
        return None


def _shown(
    request: Request, service: Service, template: str, status: int = 200, **values: Any
) -> HTMLResponse:
    user = _visitor(request, service)
    if user is None:
        return ask_to_log_in()
    return html(template, status, user=user, policy=service.policy, **values)
