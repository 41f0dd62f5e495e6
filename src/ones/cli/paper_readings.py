"""`ones paper readings`: `ones-paper` with each defensible reading of the text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import FirstSeed, Json, Processes, check_counts
from ones.cli.output import print_json, print_table, say
from ones.cli.planned_runs import planned_runs
from ones.errors import InvalidSettingError
from ones.extras import require


def readings(
    out: Annotated[
        Path,
        typer.Option(
            help="Directory for runs and figure. The same command again runs only what is missing."
        ),
    ] = Path("out/paper-readings"),
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 10,
    first_seed: FirstSeed = 1000,
    jobs: Annotated[int, typer.Option(help="Jobs of the workload `paper`.")] = 50,
    linear: Annotated[
        bool,
        typer.Option(
            "--linear", help="Every sample of a large batch counts, as the paper assumes."
        ),
    ] = False,
    processes: Processes = None,
    json: Json = False,
) -> None:
    """Run the paper's algorithm in each reading of the text, beside the margins of the paper.

    Example: ones paper readings --seeds 5
    """
    from ones.lab.comparison.results import records_of
    from ones.lab.paper import claims
    from ones.lab.paper import readings as band

    check_counts(seeds=seeds, processes=processes, jobs=jobs)
    if first_seed < 0:
        raise InvalidSettingError(f"--first-seed: {first_seed} is negative")
    require("ones paper readings", "matplotlib")
    cells = band.cells(range(first_seed, first_seed + seeds), jobs=jobs, linear=linear)
    with planned_runs(cells, out, processes, "readings") as (home, store, failures):
        rows = band.band(records_of(cells, store))
        figure = band.draw_band(rows, home, linear=linear).name if rows else ""
    if json:
        print_json({"rows": rows, "paper": claims.JCT_REDUCTION, "figure": figure})
    else:
        heads = ["reading", "mean completion s", *(f"below {r} by %" for r in claims.RIVALS), "n"]
        keys = ["reading", "mean_jct", *claims.RIVALS, "n"]
        paper = ["the paper", None, *(claims.JCT_REDUCTION[r] for r in claims.RIVALS), None]
        print_table(None, heads, [paper, *([row[key] for key in keys] for row in rows)])
    for failure in failures:
        say(f"ones: {failure}")
    if failures:
        raise typer.Exit(max(failure.exit_code for failure in failures))
