"""Renders templates to HTML. All values are escaped."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ones.control.version import SOFTWARE

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals["software"] = SOFTWARE
_TEMPLATES.filters["clock"] = lambda at: (
    datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
)


def html(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    text = _TEMPLATES.get_template(template).render(**values)
    return HTMLResponse(text.encode("utf-8", "replace"), status)


def ask_to_log_in(reason: str = "") -> HTMLResponse:
    return html("login.html", 401, reason=reason)
