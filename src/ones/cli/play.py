"""`ones trace play`: submits the jobs of a trace to the service at their times."""

from __future__ import annotations

import os
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ones.cli.client import connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, print_table, say
from ones.cli.words import duration
from ones.errors import InvalidSettingError

if TYPE_CHECKING:
    from ones.apps.trace_player import PlayedJob, Recipe


def play(
    file: Annotated[
        Path,
        typer.Argument(
            help="A trace in CSV (ours, Philly, Alibaba, Pollux) or a run log.", show_default=False
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGUMENT...", help="Added to every command."),
    ] = None,
    commands: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML",
            help="Commands by kind of job: [kinds.NAME] with command, cwd, env."
            " Default: the scripts of examples/paper, on random tensors.",
        ),
    ] = None,
    speed: Annotated[float, typer.Option(help="Factor by which the trace is played faster.")] = 1.0,
    jobs: Annotated[
        int | None, typer.Option(help="Maximum number of jobs to take from the trace.")
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until all jobs have ended, and print their results."),
    ] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> int:
    """Submit the jobs of a trace to the running service at their times, as real scripts.

    Example: ones trace play trace.csv --commands kinds.toml --speed 10
    """
    from ones.apps.trace_player import await_all, paper_recipes, read_recipes, schedule_of
    from ones.apps.trace_player import play as submit_all
    from ones.cli.scripts import look_at
    from ones.lab.runs import RunSpec, trace_of

    if not (isfinite(speed) and speed > 0):
        raise InvalidSettingError(f"--speed: {speed} is not a number above 0")
    recipes = paper_recipes() if commands is None else read_recipes(commands)
    schedule = schedule_of(
        trace_of(RunSpec(policy="", workload=str(file), jobs=jobs)), recipes, arguments or []
    )
    if schedule.left_out:
        say(f"left out: {schedule.left_out} failures or returns of nodes, which cannot be played")
    client = connect(state)
    env = dict(os.environ)

    def inspect(recipe: Recipe) -> tuple[list[str], bool | None]:
        script = look_at(list(recipe.command), Path(recipe.cwd), {**env, **recipe.env})
        return script.command, script.elastic

    def print_played(played: PlayedJob) -> None:
        if not json:
            print(f"{duration(played.at / speed):>7}  {played.job}: {played.id}", flush=True)

    played = submit_all(client, schedule, inspect, env=env, speed=speed, on_submit=print_played)
    cards = await_all(client, played) if wait else []
    if json:
        rows = [asdict(job) for job in played]
        print_json({"jobs": rows, "left_out": schedule.left_out, "ended": cards})
    elif wait:
        _print(cards)
    return 0 if all(card["state"] in ("finished", "converged") for card in cards) else 1


def _print(cards: list[dict[str, Any]]) -> None:
    rows = [
        (
            card["id"],
            card["state"],
            card["ended_at"] - card["submitted_at"],
            card["queue_seconds"],
            card["rescales"],
        )
        for card in cards
    ]
    print_table(None, ["job", "ended", "completion s", "waited s", "rescales"], rows)
    times = [row[2] for row in rows]
    print(f"mean completion time {sum(times) / len(times):,.1f} s")
