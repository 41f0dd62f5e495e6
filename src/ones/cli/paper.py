"""`ones paper`: the paper's evaluation with one command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.output import (
    JSON_HELP,
    InterruptedRunError,
    print_json,
    print_table,
    progress_of_runs,
    say,
)
from ones.errors import InvalidSettingError, WorldError


def paper(
    out: Annotated[
        Path,
        typer.Option(
            help="Where the page, its figures and all runs go. The same command again"
            " does only what is missing."
        ),
    ] = Path("out/paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few seeds, sizes and variants: minutes.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(help="How many; else 10, or 2 with --quick.")] = None,
    first_seed: Annotated[
        int, typer.Option(help="The first of them. 1 to 99 were used to choose settings.")
    ] = 1000,
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time; else as many as there are cores.")
    ] = None,
    training: Annotated[
        list[Path] | None,
        typer.Option(
            help="What `ones bench convergence --json` or `ones bench rescale --paper --json`"
            " printed: its panels then show that. May be given several times."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Rebuild the paper's evaluation: one page with every figure and table, beside the paper's.

    Example: ones paper --quick --out out/paper-quick
    """  # fmt: skip
    from ones.lab.compare import spoken
    from ones.lab.kept import Kept, held
    from ones.lab.paper.design import FULL, QUICK, Design
    from ones.lab.paper.evaluation import carrying, evaluate, whole_plan, with_seeds
    from ones.lab.paper.measured import measurements
    from ones.lab.paper.page import write_evaluation
    from ones.lab.pool import cores

    for name, value in (("seeds", seeds), ("processes", processes)):
        if value is not None and value < 1:
            raise InvalidSettingError(f"--{name}: {value} is not at least 1")
    if first_seed < 0:
        raise InvalidSettingError(f"--first-seed: {first_seed} is negative")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise WorldError("matplotlib is not installed (pip install 'ones[report]')") from None

    measured = measurements(training or ())
    design = Design(with_seeds(QUICK if quick else FULL, seeds), first_seed)
    at_once = processes or cores()
    words = ["ones paper", *(["--quick"] if quick else [])]
    words += [] if seeds is None else [f"--seeds {seeds}"]
    words += [] if first_seed == 1000 else [f"--first-seed {first_seed}"]
    words += [f"--training {path.name}" for path in training or ()]
    with held(out) as home:
        kept = Kept(home)
        plan = whole_plan(design, kept, at_once)
        say(f"plan: {plan} on {at_once} processes; kept in {home} as they finish")
        carry = carrying(kept, at_once, partial(progress_of_runs, "evaluating"))
        try:
            evaluation = evaluate(design, kept, home, carry, at_once, measured)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted; {len(kept):,} finished runs are in {home}:"
                " the same command again goes on"
            ) from None
        written = write_evaluation(evaluation, design, " ".join([*words, "--out DIR"]), home)
    if json:
        print_json(evaluation.told())
    else:
        rows = [
            (panel.title, {True: "agrees", False: "differs", None: "-"}[panel.verdict.agrees],
             "assumption" if panel.assumption else "measured" if panel.measured else "")
            for panel in evaluation.panels
        ]  # fmt: skip
        print_table(None, ["panel", "with the paper", ""], rows)
    spent = sum(record.row["wall_seconds"] for record in evaluation.comparison.records)
    say(f"the page: {written[0]} (runs of {spoken(spent)} in all)")
    for failure in evaluation.comparison.failures:
        say(f"ones: {failure}")
    if evaluation.comparison.exit_code:
        raise typer.Exit(evaluation.comparison.exit_code)
