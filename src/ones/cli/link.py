"""`ones link`: a login link for the web page."""

from __future__ import annotations

from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json


def link(
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Print a login link for the web page. It works once, within ten minutes.

    Example: ones link
    """
    url = connect(state).post("/api/link")["url"]
    if json:
        print_json({"link": url})
    else:
        print(url)
