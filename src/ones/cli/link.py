"""`ones link`: a way into the web page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.client import connect
from ones.cli.output import JSON_HELP, print_json


def link(
    state: Annotated[
        Path | None, typer.Option(help="The service's directory.", metavar="DIR")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Print a link that logs a browser in to the web page: once, within ten minutes.

    Example: ones link
    """
    url = connect(state).post("/api/link")["url"]
    if json:
        print_json({"link": url})
    else:
        print(url)
