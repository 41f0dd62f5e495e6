"""`ones store`: the database of the service."""

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

store = typer.Typer(no_args_is_help=True, help="The database of the service.")


@store.callback()
def _group() -> None:
    pass  # without a callback, typer would not treat the only command as one of a group


@store.command()
def move(
    url: Annotated[
        str, typer.Argument(help="URL of an empty database: postgresql://user@host/name.")
    ],
    state: Annotated[
        Path | None, typer.Option(help="State directory of the service.", metavar="DIR")
    ] = None,
    json: Json = False,
) -> None:
    """Move the service's SQLite database to PostgreSQL and check the copy; the old file stays.

    Example: ones store move postgresql://ones@db.example.org/ones
    """
    from ones.control.database import hidden
    from ones.control.database_copy import move as move_database
    from ones.control.statedir import StateDir

    found = effective(section="service", state=str(state) if state else None)
    directory = StateDir.of(found.settings.service.state)
    if not (directory.path / "ones.db").is_file():
        raise UserError(f"{directory.path}: has no SQLite database ones.db; see --dir")
    directory.lock()  # no controller may write meanwhile
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
    """A bar per table; without a terminal, a line per table."""
    if not sys.stderr.isatty():

        def print_table_done(table: str, done: int, total: int) -> None:
            if done == total:
                say(f"{table}: {total} rows")

        yield print_table_done
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
