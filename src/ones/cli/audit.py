"""`ones audit`: the audit log."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.cli.words import moment
from ones.errors import UserError

PAGE = 1000  # maximum number of rows in one response
_AGO = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def audit(
    limit: Annotated[int, typer.Option(help="Maximum number of rows.", min=1)] = 100,
    user: Annotated[str | None, typer.Option(help="Only rows by or about this user.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only rows since: 30m, 12h, 7d, or 2026-01-31[T12:00]."),
    ] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show the audit log (admins only): logins, refusals, changes of users, GPUs and other users'
    jobs.

    Example: ones audit --since 7d --user ann
    """
    after = None if since is None else moment_of(since, time.time())
    client = connect(state)
    rows: list[dict[str, Any]] = []
    while len(rows) < limit:
        before = rows[-1]["number"] if rows else None
        size = min(PAGE, limit - len(rows))
        page = client.get("/api/audit", limit=size, user=user, since=after, before=before)
        rows += page
        if len(page) < size:
            break
    if json:
        print_json(rows)
        return
    if not rows:
        say("no entries" + (" match" if user or since else "; the audit log is empty"))
        return
    columns = ["when", "user", "action", "of", "detail", "from"]
    names = ("who", "action", "subject", "detail", "address")
    table = [(moment(row["at"]), *(row[name] or None for name in names)) for row in reversed(rows)]
    print_table(None, columns, table)


def moment_of(text: str, now: float) -> float:
    """The time that `--since` means, in seconds since 1970.

    >>> moment_of("2h", 10_000.0)
    2800.0
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0.0, now - int(ago[1]) * _SECONDS[ago[2]])
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise UserError(
            f"--since: {text!r} is neither a duration (30m, 12h, 7d) nor a date (2026-01-31)"
        ) from None
