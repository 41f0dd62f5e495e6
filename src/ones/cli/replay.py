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
        str | None,
        typer.Option(help="Must be the log's own policy; for others use `ones sim --workload`."),
    ] = None,
    json: Json = False,
) -> None:
    """Replay a recorded run with a new scheduler, which must give the same plans byte for byte.

    Exit code 0 if the plans are the same, 1 with the first difference otherwise.
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
            f"{log} was recorded with policy {header.policy}; with {policy} other events would"
            f" have happened. Simulate it: ones sim --policy {policy} --workload {log}"
        )
    if header.changed_at is not None:
        raise UserError(
            f"{log}: cannot be replayed: the policy ({header.policy} now), its settings or the"
            f" version of ones changed at {moment(header.changed_at)}"
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
        say(f"{log}: the last line is cut off and was not read")
    elif result.open_end:
        say(f"{log}: ends before the plan of its last event; that plan was not compared")
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
        print(f"  recorded: {_shown(difference.recorded)}")
        print(f"  replayed: {_shown(difference.replayed)}")
    if difference is not None:
        raise typer.Exit(1)


def _shown(plan: str | None) -> str:
    """All jobs by name; other marks stay visible, since plans may differ in them alone."""
    from ones.core.reason_markers import render

    return render(plan or "no plan", live=lambda kind, number: f"[{kind} {number}]")
