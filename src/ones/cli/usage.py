"""`ones usage` and `ones user budget`: GPU hours by user, tag and day."""

from __future__ import annotations

import csv
import sys
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from ones.cli.audit import moment_of
from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.cli.user import NAME, user
from ones.errors import UnknownNameError, UserError

KEYS = ("user", "tag", "day")


def usage(
    by: Annotated[
        str, typer.Option("--by", "-b", metavar="KEYS", help="Of user,tag,day: one row for each.")
    ] = "user",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From this day on: 7d, or 2026-01-31.")
    ] = "30d",
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Up to this day: 1d, or 2026-01-31.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--user", "-u", help="Only jobs of this user.")
    ] = None,
    fair_share: Annotated[
        bool,
        typer.Option("--fair-share", help="Show the past use that counts in the order of jobs."),
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show GPU hours by user, tag and day. A job with several tags counts for each of them.

    Example: ones usage --by user,day --since 7d --csv
    """
    if fair_share:
        _show_shares(connect(state).get("/api/shares"), json=json)
        return
    keys = [part.strip() for part in by.split(",")]
    for key in keys:
        if key not in KEYS:
            raise UnknownNameError("key", key, KEYS)
    if as_csv and json:
        raise UserError("--json: not together with --csv")
    now = time.time()
    rows = connect(state).get(
        "/api/usage",
        by=keys,
        since=moment_of(since, now),
        until=None if until is None else moment_of(until, now),
        owner=name,
    )
    if json:
        print_json(rows)
        return
    shown = [[*(row[key] for key in keys), round(row["gpu_hours"], 4)] for row in rows]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([[*keys, "gpu_hours"], *shown])
        return
    if not rows:
        say("no GPU was used in this time")
        return
    print_table(None, [*keys, "GPU hours"], shown)


def _show_shares(found: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    if not found["half_life_hours"]:
        say("past use does not count in the order of jobs (fair_share_half_life_hours)")
        return
    rows = [
        (
            each["user"],
            *(round(each[key], 4) for key in ("gpu_hours", "share_gpu_hours")),
            round(each["ratio"], 2),
            -each["penalty"],
        )
        for each in found["users"]
    ]
    title = f"past use, half-life {found['half_life_hours']:g} h"
    print_table(title, ["user", "GPU hours", "equal share", "ratio", "priority"], rows)


@user.command()
def budget(
    name: Annotated[str | None, NAME] = None,
    gpu_hours: Annotated[
        str | None, typer.Argument(help="GPU hours in a calendar month, or `none`.")
    ] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show budgets, or set one: without GPU hours left, new jobs of the user are refused.

    Example: ones user budget ann 500
    """
    client = connect(state)
    if name is not None and gpu_hours is not None:
        try:
            most = None if gpu_hours == "none" else float(gpu_hours)
        except ValueError:
            raise UserError(f"gpu_hours: {gpu_hours!r} is neither a number nor `none`") from None
        found = [client.put(f"/api/users/{quote(name, safe='')}/budget", {"gpu_hours": most})]
    else:
        known = client.get("/api/budgets")
        found = [each for each in known if name in (None, each["user"])]
        if name is not None and not found:
            raise UnknownNameError("user", name, [each["user"] for each in known])
    if json:
        print_json(found)
        return
    rows = [(each["user"], each["gpu_hours"], round(each["used"], 2)) for each in found]
    print_table(None, ["user", "GPU hours a month", "used"], rows)
