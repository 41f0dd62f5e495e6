"""`ones notify`: messages about jobs, to a URL or a command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.errors import UserError

NUMBER = typer.Argument(help="Number of the notification.")

notify = typer.Typer(no_args_is_help=True, help="Messages about your jobs: webhooks and commands.")


@notify.command()
def add(
    where: Annotated[
        list[str], typer.Argument(metavar="URL | -- COMMAND...", help="A URL, or a command.")
    ],
    on: Annotated[
        str | None,
        typer.Option(
            metavar="EVENTS", help="Of start,end,failure,preemption,warning; default: all."
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only about jobs with this tag.")] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Call a URL, or run a command on the controller's machine (admins only), when a job of yours
    starts, ends, fails, is preempted, leaves GPUs idle or has a slow worker. Prints the key of the
    signature, which is shown only once.

    Example: ones notify add https://chat.example/hooks/42 --on end,failure
    """
    is_url = len(where) == 1 and "://" in where[0]
    body: dict[str, Any] = {"url": where[0]} if is_url else {"command": where}
    if on is not None:
        body["events"] = [event.strip() for event in on.split(",")]
    made = connect(state).post("/api/notifications", {**body, "tag": tag or ""})
    if json:
        print_json(made)
        return
    print(made["secret"])
    say(f"notification {made['number']}; try it: ones notify test {made['number']}")


@notify.command(name="list")
def list_(state: StateDirectory = None, json: Json = False) -> None:
    """List notifications, with the result of the last delivery.

    Example: ones notify list
    """
    found = connect(state).get("/api/notifications")
    if json:
        print_json(found)
        return
    if not found:
        say("no notifications; add one: ones notify add URL")
        return
    rows = [
        (n["number"], n["owner"], n["url"] or " ".join(n["command"]), ",".join(n["events"]),
         n["tag"] or None, n["last"] or None)
        for n in found
    ]  # fmt: skip
    print_table(None, ["number", "user", "to", "events", "tag", "last delivery"], rows)


@notify.command(name="test")
def try_(number: Annotated[int, NUMBER], state: StateDirectory = None, json: Json = False) -> None:
    """Deliver a message about a job that does not exist, once.

    Example: ones notify test 1
    """
    found = connect(state).post(f"/api/notifications/{_checked(number)}/test")
    if json:
        print_json(found)
        return
    say(f"notification {number}: {found['last']}")


@notify.command()
def remove(
    number: Annotated[int, NUMBER], state: StateDirectory = None, json: Json = False
) -> None:
    """Remove a notification.

    Example: ones notify remove 1
    """
    found = connect(state).delete(f"/api/notifications/{_checked(number)}")
    if json:
        print_json(found)
        return
    say(f"notification {number}: removed")


def _checked(number: int) -> int:
    if number < 1:
        raise UserError(f"number: {number} is not at least 1")
    return number
