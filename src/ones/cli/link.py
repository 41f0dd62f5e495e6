"""`ones link`: a way into the web page for a browser."""

from __future__ import annotations

from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json


def link(
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Print a link that logs a browser in to the web page: once, within ten minutes.

    Example: ones link
    """
    url = connect(state).post("/api/link")["url"]
    if json:
        print_json({"link": url})
    else:
        print(url)
