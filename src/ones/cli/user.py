"""`ones user`: who may use the service, and how many GPUs at once."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from ones.cli.client import Client, connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.errors import UserError

NAME = typer.Argument(help="Of the user.")

user = typer.Typer(no_args_is_help=True, help="Users of the service; for its admins.")


@user.command()
def add(
    name: Annotated[str, typer.Argument(help="Small letters, digits, `_`, `-`, `.`.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="May see and end everybody's jobs.")
    ] = False,
    max_gpus: Annotated[int | None, typer.Option(help="No more at once.")] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Add a user; prints the token, this once.

    Example: ones user add ann --max-gpus 8
    """
    client = connect(state)
    made = client.post("/api/users", {"name": name, "role": "admin" if admin else "user"})
    if max_gpus is not None:
        client.put(f"/api/users/{_in_path(name)}/limit", {"max_gpus": max_gpus})
    _show_token(client, made, json=json)


@user.command()
def token(
    name: Annotated[str, NAME],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Give a user another token; the old one is void at once.

    Example: ones user token ann
    """
    client = connect(state)
    _show_token(client, client.post(f"/api/users/{_in_path(name)}/token"), json=json)


@user.command(name="list")
def list_(state: StateDirectory = None, json: Json = False) -> None:
    """List users with their limits.

    Example: ones user list
    """
    found = connect(state).get("/api/users")
    if json:
        print_json(found)
        return
    rows = [(u["name"], u["role"], u["max_gpus"]) for u in found]
    print_table(None, ["user", "role", "GPUs at most"], rows)


@user.command()
def limit(
    name: Annotated[str, NAME],
    max_gpus: Annotated[str, typer.Argument(help="For all their jobs together, or `none`.")],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Limit the GPUs of a user's jobs together; `none` lifts the limit.

    Example: ones user limit ann 8
    """
    if max_gpus != "none" and not max_gpus.isdecimal():
        raise UserError(f"max_gpus: {max_gpus!r} is neither a number nor `none`")
    most = None if max_gpus == "none" else int(max_gpus)
    found = connect(state).put(f"/api/users/{_in_path(name)}/limit", {"max_gpus": most})
    if json:
        print_json(found)
        return
    say(f"{name}: " + ("no limit" if most is None else f"at most {most} GPUs"))


@user.command()
def remove(
    name: Annotated[str, NAME],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Remove a user. Their jobs go on; `ones cancel` ends them.

    Example: ones user remove ann
    """
    found = connect(state).delete(f"/api/users/{_in_path(name)}")
    if json:
        print_json(found)
        return
    say(f"{name} is removed")


def _in_path(name: str) -> str:
    return quote(name, safe="")


def _show_token(client: Client, made: dict[str, str], *, json: bool) -> None:
    if json:
        print_json({**made, "url": client.url})
        return
    print(made["token"])
    say(
        f"this token is not shown again. {made['name']} sets ONES_URL={client.url} and"
        " ONES_API_TOKEN to it"
    )
    if client.url.startswith("https:"):
        say("unless the certificate is known there: SSL_CERT_FILE, too; ones up printed the file")
