"""The web page: HTML templates, plain JavaScript modules, one event stream for each open page.

`views` serves the pages, `session` logs browsers in and out, `stream` sends updates to an open page
(`feed` reads them), `headers` sets the security headers of all responses.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from ones.control.page import session, stream, views
from ones.control.page.headers import SafeHeaders


def add_page(app: FastAPI) -> None:
    """Add the page to the application that serves the API."""
    for part in (session, stream, views):
        app.include_router(part.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
    app.add_exception_handler(404, views.not_found)
    app.add_middleware(SafeHeaders)
