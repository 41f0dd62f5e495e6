"""`ones replay`: replays a recorded run and compares the plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import Json
from ones.cli.output import print_json, say
from ones.cli.words import moment
from ones.errors import InvalidFileError, UserError


def replay(
    log: Annotated[Path, typer.Argument(help="A run log (run.jsonl).", show_default=False)],
    policy: Annotated[
        str | None, typer.Option(help="Only the log's own: anything else is re-simulation.")
    ] = None,
    json: Json = False,
) -> None:
    """Feed a recorded run's events to a new scheduler: it must give the same plans, byte for byte.

    Exit code 0 if it does, 1 with the first difference if it does not.
    """
    from ones.lab.processes import results_only
    from ones.policies import create, located, require
    from ones.runlog import RunLog
    from ones.runlog import replay as play

    recorded = RunLog(log)
    header = recorded.header
    if policy is not None and located(policy) != header.policy:
        require(policy)
        raise UserError(
            f"{log} was recorded under {header.policy}: {policy} would have made other events"
            f" happen. That is re-simulation: ones sim --policy {policy} --workload {log}"
        )
    if header.changed_at is not None:
        raise UserError(
            f"{log}: until {moment(header.changed_at)} another policy, other settings or another"
            f" version decided, and not the {header.policy} of now: that cannot be replayed"
        )
    try:
        fresh = create(header.policy, seed=header.seed, **header.settings)
    except UserError as problem:
        raise InvalidFileError(log, str(problem), line=1) from problem
    with results_only():
        result = play(recorded, fresh, make=lambda name: create(name, seed=header.seed))
    if header.first > 1:
        say(f"{log}: begins with entry {header.first:,}; older entries were archived")
    if recorded.cut_off:
        say(f"{log}: the last line is cut off; read up to it")
    elif result.open_end:
        say(f"{log}: ends before the plan for its last event, which is not compared")
    difference = result.difference
    if json:
        print_json(
            {
                "log": str(log),
                "policy": header.policy,
                "seed": header.seed,
                "first_entry": header.first,
                "events": result.events,
                "plans": result.plans,
                "cut_off": recorded.cut_off or result.open_end,
                "same": difference is None,
                "difference": difference
                and {
                    "line": difference.line,
                    "recorded": difference.recorded,
                    "replayed": difference.replayed,
                },
            }
        )
    elif difference is None:
        print(f"same: {result.plans:,} plans from {result.events:,} events ({header.policy})")
    else:
        print(f"{log}:{difference.line}: the replay differs")
        print(f"  recorded: {difference.recorded or 'no plan'}")
        print(f"  replayed: {difference.replayed or 'no plan'}")
    if difference is not None:
        raise typer.Exit(1)
