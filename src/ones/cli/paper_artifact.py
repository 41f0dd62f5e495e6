"""`ones paper artifact`: our schedulers on the authors' trace, beside the authors' results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ones.cli.options import FirstSeed, Json, Processes, check_counts
from ones.cli.output import print_json, print_table, say
from ones.cli.planned_runs import planned_runs
from ones.errors import InvalidSettingError
from ones.extras import require


def artifact(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the authors' data: trace_1.csv and the result files of four"
            " schedulers. Without it, generated jobs and the figures of those files are used.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Directory for runs, figure and page. The same command again runs only what is"
            " missing."
        ),
    ] = Path("out/paper-artifact"),
    quick: Annotated[bool, typer.Option("--quick", help="One seed; takes minutes.")] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds; default: 10, or 1 with --quick.")
    ] = None,
    first_seed: FirstSeed = 1000,
    policies: Annotated[
        str | None, typer.Option(help="Policies, as `ones,fifo`; default: those of the panel.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Jobs: the first rows of the trace.")] = 50,
    processes: Processes = None,
    json: Json = False,
) -> None:
    """Run our schedulers on the authors' own trace, beside the authors' results.

    Example: ones paper artifact --data DIR --quick --json
    """
    from ones.lab.paper.artifact import (
        SCHEDULERS,
        ArtifactDesign,
        artifact_result,
        write_artifact,
    )
    from ones.lab.paper.authors_results import check_directory, read_results
    from ones.workload.artifact import read_artifact_trace

    check_counts(seeds=seeds, processes=processes, jobs=jobs)
    if first_seed < 0:
        raise InvalidSettingError(f"--first-seed: {first_seed} is negative")
    require("ones paper artifact", "matplotlib")
    if data is not None:  # raises for a wrong file before the runs
        read_artifact_trace(check_directory(data))
        read_results(data)
    labels = SCHEDULERS if policies is None else tuple(p.strip() for p in policies.split(","))
    design = ArtifactDesign(
        data=data,
        jobs=jobs,
        first_seed=first_seed,
        seeds=seeds or (1 if quick else 10),
        labels=labels,
    )
    cells = design.cells()
    command = ["ones paper artifact", *([] if data is None else ["--data DIR"])]
    command += ["--quick"] if quick else []
    command += [] if seeds is None else [f"--seeds {seeds}"]
    command += [] if first_seed == 1000 else [f"--first-seed {first_seed}"]
    command += [] if policies is None else [f"--policies {policies}"]
    command += [] if jobs == 50 else [f"--jobs {jobs}"]
    with planned_runs(cells, out, processes, "artifact") as (home, store, failures):
        result = artifact_result(design, store, home, failures)
        written = write_artifact(result, " ".join([*command, "--out DIR"]), home)
    if json:
        print_json(result)
    else:
        _print(result)
    say(f"the page: {written[0]}")
    for failure in failures:
        say(f"ones: {failure}")
    if failures:
        raise typer.Exit(max(failure.exit_code for failure in failures))


def _print(result: Mapping[str, Any]) -> None:
    from ones.lab.paper.artifact_panel import COLUMNS, bound_sentence, cell

    heads = list(COLUMNS.values())
    for title, key in (("our schedulers", "rows"), ("the authors' files", "authors")):
        print_table(title, heads, [[cell(row, k) for k in COLUMNS] for row in result[key]])
    for title, key in (("targets", "targets"), ("set-up", "setup")):
        print_table(title, ["", "value", "from", "to", ""], _checks(result[key]))
    say(bound_sentence(result))
    for warning in result["warnings"]:
        say(warning)


def _checks(found: list[Mapping[str, Any]]) -> list[list[object]]:
    from ones.lab.paper.artifact_panel import verdict_word

    return [
        [c["name"], c["value"], c["low"], c["high"], verdict_word(c["ok"])] for c in found
    ]  # fmt: skip
