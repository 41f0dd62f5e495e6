"""`ones user`: users of the service, their tokens and GPU limits."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from ones.cli.client import Client, connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.errors import UserError

NAME = typer.Argument(help="Name of the user.")

user = typer.Typer(no_args_is_help=True, help="Users of the service (admins only).")


@user.command()
def add(
    name: Annotated[str, typer.Argument(help="Name: lower-case letters, digits, `_`, `-`, `.`.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="May see and cancel the jobs of all users.")
    ] = False,
    max_gpus: Annotated[
        int | None, typer.Option(help="Maximum number of GPUs for all jobs of the user.")
    ] = None,
    unix: Annotated[
        str | None,
        typer.Option(help="Unix user: needs no token on this machine, and jobs run as this user."),
    ] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Add a user and print the token, which is shown only once.

    Example: ones user add ann --unix ann --max-gpus 8
    """
    client = connect(state)
    role = "admin" if admin else "user"
    made = client.post("/api/users", {"name": name, "role": role, "unix": unix})
    if max_gpus is not None:
        client.put(f"/api/users/{_in_path(name)}/limit", {"max_gpus": max_gpus})
    _show_token(client, made, json=json)


@user.command()
def token(
    name: Annotated[str, NAME],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Renew the token of a user; the old one becomes invalid at once.

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
    rows = [(u["name"], u["role"], u["max_gpus"], u["unix"]) for u in found]
    print_table(None, ["user", "role", "max GPUs", "Unix user"], rows)


@user.command()
def limit(
    name: Annotated[str, NAME],
    max_gpus: Annotated[
        str, typer.Argument(help="Maximum number of GPUs for all jobs of the user, or `none`.")
    ],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Limit the GPUs of all jobs of a user together; `none` removes the limit.

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
def unix(
    name: Annotated[str, NAME],
    unix: Annotated[str, typer.Argument(help="Name of the Unix user, or `none`.")],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Set the Unix user of a user: no token is needed on this machine, and jobs run as that user.

    Example: ones user unix ann ann
    """
    body = {"unix": None if unix == "none" else unix}
    found = connect(state).put(f"/api/users/{_in_path(name)}/unix", body)
    if json:
        print_json(found)
        return
    say(f"{name}: " + ("no Unix user" if unix == "none" else f"Unix user {unix}"))


@user.command()
def remove(
    name: Annotated[str, NAME],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Remove a user. The user's jobs continue; `ones cancel` stops them.

    Example: ones user remove ann
    """
    found = connect(state).delete(f"/api/users/{_in_path(name)}")
    if json:
        print_json(found)
        return
    say(f"{name}: removed")


def _in_path(name: str) -> str:
    return quote(name, safe="")


def _show_token(client: Client, made: dict[str, str], *, json: bool) -> None:
    if json:
        print_json({**made, "url": client.url})
        return
    print(made["token"])
    if client.is_local:
        say("this token is not shown again; it is for other machines")
        return
    say(
        f"this token is not shown again. User {made['name']} must set ONES_URL={client.url} and"
        " ONES_API_TOKEN to this token"
    )
    if client.url.startswith("https:"):
        say("and SSL_CERT_FILE to a copy of the file that `ones up` printed, unless it is trusted")
