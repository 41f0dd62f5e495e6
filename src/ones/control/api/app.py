"""The FastAPI application: routes, size limit and error responses."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ones.control.api import (
    cluster,
    curves,
    history,
    jobs,
    notify,
    slurm,
    snapshots,
    timeline,
    usage,
    whatif,
)
from ones.control.api.errors import BUG, LARGEST_REQUEST, TOO_LARGE, headers_of, status_of
from ones.control.readmodels.timeline import Timeline
from ones.control.service import Service
from ones.control.version import SOFTWARE
from ones.errors import OnesError, short


def create_app(service: Service) -> FastAPI:
    """The application for users. Requests of workers go to `WorkerApi` and do not reach it."""
    app = bare_app()
    app.state.service = service
    app.state.timeline = Timeline(service.store)
    return app


def bare_app() -> FastAPI:
    """The application without a service, for its OpenAPI document."""
    app = FastAPI(
        title="ONES",
        version=SOFTWARE,
        description="Share GPUs among training jobs. Times are seconds since 1970.",
        docs_url=None,  # FastAPI's page loads files from the internet; ours is in `page.views`
        redoc_url=None,
    )
    for part in (jobs, curves, cluster, notify, usage, timeline, history, snapshots, whatif, slurm):
        app.include_router(part.router)
    app.add_middleware(_Limit)
    app.add_exception_handler(OnesError, _ones_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)  # FastAPI raises it again and the gate logs it
    return app


def _error(status: int, text: str, headers: Any = None) -> Response:  # noqa: ANN401
    # ASCII only: the reason may be a text that is not valid Unicode
    body = json.dumps({"error": text})
    return Response(body, status, headers, media_type="application/json")


def _ones_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, OnesError)
    return _error(status_of(problem), str(problem), headers_of(problem))


def _invalid(request: Request, problem: Exception) -> Response:
    """One line that names the field, what is wrong, and the value."""
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    what = first["msg"].removeprefix("Value error, ")
    got = "" if isinstance(first.get("input"), dict) else f" (got {short(first.get('input'))})"
    return _error(422, f"{field}: {what}{got}" if field else f"{what}{got}")


def _bug(request: Request, problem: Exception) -> Response:
    return _error(500, BUG)


def _http_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, StarletteHTTPException)
    headers = problem.headers if isinstance(problem, HTTPException) else None
    return _error(problem.status_code, str(problem.detail), headers)


class _TooLargeError(Exception):
    pass


class _Limit:
    """Refuses requests that are larger than LARGEST_REQUEST bytes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > LARGEST_REQUEST:
            await _error(413, TOO_LARGE)(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > LARGEST_REQUEST:
                raise _TooLargeError
            return message

        try:
            await self._app(scope, limited, send)
        except _TooLargeError:
            await _error(413, TOO_LARGE)(scope, receive, send)
