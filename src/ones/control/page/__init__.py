"""The web page: HTML from templates, plain modules, one stream of news for each open page.

`views` gives the pages, `session` logs browsers in and out, `stream` tells an open page what
is new (read by `feed`), `headers` says what a browser may do with any of it.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from ones.control.page import session, stream, views
from ones.control.page.headers import SafeHeaders


def add_page(app: FastAPI) -> None:
    """To the application that has the API."""
    for part in (session, stream, views):
        app.include_router(part.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
    app.add_exception_handler(404, views.not_found)
    app.add_middleware(SafeHeaders)
