"""`ones top`: the service, live in the terminal."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Annotated

import typer

from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import out, print_json
from ones.errors import InvalidSettingError


def top(
    all: Annotated[
        bool, typer.Option("--all", "-a", help="Also the last jobs that have ended.")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Watch slots, jobs, forecasts and decisions, live. q or Ctrl-C ends it.

    Prints once if the output is a pipe or a dumb terminal.
    """
    from rich.live import Live

    from ones.apps.service_snapshot import ServiceSnapshot, take_snapshot
    from ones.cli.screen import is_live, picture

    if not interval >= 0.1:
        raise InvalidSettingError(f"--interval: {interval} is not at least 0.1")
    client = connect(state)
    snapshot = take_snapshot(client, ended=all)
    if json:
        print_json(asdict(snapshot))
        return

    def title(snapshot: ServiceSnapshot) -> str:
        cluster = snapshot.cluster
        return (
            f"ONES at {client.url}, policy {cluster['policy']}:"
            f" {cluster['running']} running, {cluster['waiting']} waiting"
        )

    console = out()
    if once or not is_live(console):
        console.print(picture(snapshot, title(snapshot), console.width))
        return
    with (
        suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(
                picture(snapshot, title(snapshot) + "   (q: quit)", console.width), refresh=True
            )
            if pressed(interval) in ("q", "Q", "\x03"):
                return
            snapshot = take_snapshot(client, ended=all)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that returns the next key, or "" if none is pressed in the given seconds."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    tty.setcbreak(sys.stdin)
    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
