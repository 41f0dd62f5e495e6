"""`ones store`: the database behind the service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import Json
from ones.cli.output import err, print_json, say
from ones.cli.settings import effective
from ones.errors import UserError

store = typer.Typer(no_args_is_help=True, help="The database behind the service.")


@store.callback()
def _group() -> None:
    pass  # so that one command stays a command of a group


@store.command()
def move(
    url: Annotated[str, typer.Argument(help="An empty database, as postgresql://user@host/name.")],
    state: Annotated[
        Path | None, typer.Option(help="Directory of all the service keeps.", metavar="DIR")
    ] = None,
    json: Json = False,
) -> None:
    """Copy the service's SQLite database to PostgreSQL, check the copy, and leave the old one.

    Example: ones store move postgresql://ones@db.example.org/ones
    """
    from ones.control.database import hidden
    from ones.control.database_copy import move as move_database
    from ones.control.statedir import StateDir

    found = effective(section="service", state=str(state) if state else None)
    directory = StateDir.of(found.settings.service.state)
    if not (directory.path / "ones.db").is_file():
        raise UserError(f"{directory.path}: there is no database here")
    directory.lock()  # no controller writes to it meanwhile
    try:
        with _progress() as show:
            rows = move_database(directory.database, url, show)
    finally:
        directory.unlock()
    if json:
        print_json({"to": hidden(url), "rows": rows})
        return
    say(f"moved {sum(rows.values())} rows to {hidden(url)}")
    say(f"start the service with: ones up --database {hidden(url)}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each table; where nobody watches, a line for each."""
    if not sys.stderr.isatty():

        def tell(table: str, done: int, total: int) -> None:
            if done == total:
                say(f"{table}: {total} rows")

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err()) as bar:
        tasks = {}

        def show(table: str, done: int, total: int) -> None:
            if table not in tasks:
                tasks[table] = bar.add_task(table, total=total)
            bar.update(tasks[table], completed=done)

        yield show
