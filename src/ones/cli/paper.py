"""`ones paper`: the paper's evaluation with one command, and what goes beyond it with another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import FirstSeed, Json, Processes, check_counts
from ones.cli.output import (
    InterruptedRunError,
    print_json,
    print_table,
    progress_of_runs,
    say,
)
from ones.errors import InvalidSettingError, WorldError

paper = typer.Typer(invoke_without_command=True)


@paper.callback()
def evaluation(
    context: typer.Context,
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
    first_seed: FirstSeed = 1000,
    processes: Processes = None,
    training: Annotated[
        list[Path] | None,
        typer.Option(
            help="What `ones bench convergence --json` or `ones bench rescale --paper --json`"
            " printed: its panels then show that. May be given several times."
        ),
    ] = None,
    sweeps: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Show what `ones paper sweeps --out DIR` has found, too."),
    ] = None,
    json: Json = False,
) -> None:
    """Rebuild the paper's evaluation: one page with every figure and table, beside the paper's.

    Example: ones paper --quick --out out/paper-quick
    """  # fmt: skip
    if context.invoked_subcommand is not None:
        return
    from ones.lab.comparison.execution import format_duration
    from ones.lab.comparison.process_pool import available_cores
    from ones.lab.comparison.result_store import ResultStore, locked
    from ones.lab.paper.design import FULL, QUICK, Design
    from ones.lab.paper.evaluation import evaluate, planned_runner, whole_plan, with_seeds
    from ones.lab.paper.measurements import measurements
    from ones.lab.paper.page import write_evaluation
    from ones.lab.paper.sweep_results import read_panels

    _check(seeds, processes, first_seed)
    beyond = [] if sweeps is None else read_panels(sweeps)
    measured = measurements(training or ())
    design = Design(with_seeds(QUICK if quick else FULL, seeds), first_seed)
    at_once = processes or available_cores()
    words = ["ones paper", *(["--quick"] if quick else [])]
    words += [] if seeds is None else [f"--seeds {seeds}"]
    words += [] if first_seed == 1000 else [f"--first-seed {first_seed}"]
    words += [f"--training {path.name}" for path in training or ()]
    words += [] if sweeps is None else ["--sweeps DIR"]
    with locked(out) as home:
        store = ResultStore(home)
        plan = whole_plan(design, store, at_once)
        say(f"plan: {plan} on {at_once} processes; kept in {home} as they finish")
        run_planned = planned_runner(store, at_once, partial(progress_of_runs, "evaluating"))
        try:
            found = evaluate(design, store, home, run_planned, at_once, measured, beyond)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted; {len(store):,} finished runs are in {home}:"
                " the same command again goes on"
            ) from None
        written = write_evaluation(found, design, " ".join([*words, "--out DIR"]), home)
    if json:
        print_json(found.to_json())
    else:
        rows = [
            (panel.title, {True: "agrees", False: "differs", None: "-"}[panel.verdict.agrees],
             "assumption" if panel.assumption else "measured" if panel.measured else "")
            for panel in found.panels
        ]  # fmt: skip
        print_table(None, ["panel", "with the paper", ""], rows)
    spent = sum(record.row["wall_seconds"] for record in found.comparison.records)
    say(f"the page: {written[0]} (runs of {format_duration(spent)} in all)")
    for failure in found.comparison.failures:
        say(f"ones: {failure}")
    if found.comparison.exit_code:
        raise typer.Exit(found.comparison.exit_code)


@paper.command("sweeps")
def sweeps_(
    out: Annotated[
        Path,
        typer.Option(
            help="Where the runs, tables, figures and the page go. The same command again does"
            " only what is missing."
        ),
    ] = Path("out/sweeps"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few seeds, jobs and sizes: minutes.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Names of sweeps, as loads,physics; else all.")
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            help="A production trace in CSV (Philly, Pollux, Alibaba): a sweep over its jobs. May"
            " be given several times."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many; else 10, fewer where runs are long.")
    ] = None,
    first_seed: FirstSeed = 1000,
    processes: Processes = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only print the `ones compare` commands it stands for.")
    ] = False,
    json: Json = False,
) -> None:
    """Go beyond the paper: loads, other physics, wrong predictions, sizes, fairness.

    The most important sweep comes first, and the page is written after each: stop it when you like.

    Example: ones paper sweeps --quick --out out/sweeps-quick
    """
    from ones.lab.comparison.execution import RunFailure, RunPlan
    from ones.lab.comparison.process_pool import available_cores
    from ones.lab.comparison.result_store import ResultStore, locked
    from ones.lab.paper.evaluation import planned_runner
    from ones.lab.paper.sweep_results import sweep_result, write_sweeps
    from ones.lab.paper.sweeps import FULL, QUICK, commands, select_sweeps, sweeps

    _check(seeds, processes, first_seed)
    size = (QUICK if quick else FULL).with_seeds(seeds)
    names = [] if only is None else [name.strip() for name in only.split(",")]
    asked = select_sweeps(sweeps(size, trace or ()), names)
    if list_:
        for line in commands(asked, first_seed, str(out)):
            print(line)
        return
    words = ["ones paper sweeps", *(["--quick"] if quick else [])]
    words += [] if only is None else [f"--only {only}"]
    words += [f"--trace {path.name}" for path in trace or ()]
    words += [] if seeds is None else [f"--seeds {seeds}"]
    words += [] if first_seed == 1000 else [f"--first-seed {first_seed}"]
    at_once = processes or available_cores()
    failures: list[RunFailure] = []
    with locked(out) as home:
        store = ResultStore(home)
        cells = {sweep.name: sweep.cells(first_seed) for sweep in asked}
        everything = [cell for found in cells.values() for cell in found]
        say(
            f"plan: {RunPlan.of(everything, store, at_once)} on {at_once} processes; kept in {home}"
        )

        def written() -> list[Path]:
            found = [sweep_result(sweep, store, first_seed, home) for sweep in asked]
            shown = [sweep for sweep in found if sweep["leads"]]
            return write_sweeps(shown, " ".join([*words, "--out DIR"]), home)

        try:
            for sweep in asked:
                run_planned = planned_runner(store, at_once, partial(progress_of_runs, sweep.name))
                plan = RunPlan.of(cells[sweep.name], store, at_once)
                failures += run_planned(plan)
                if plan.missing:
                    say(f"{sweep.name}: {written()[0]}")
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted; {len(store):,} finished runs are in {home}, tables of them in"
                f" {written()[1].name}: the same command again goes on"
            ) from None
        paths = written()
        tables = paths[1].read_text(encoding="utf-8")
        result = paths[2].read_text(encoding="utf-8")
    print(result if json else tables, end="")
    say(f"the page: {paths[0]}")
    for failure in failures:
        say(f"ones: {failure}")
    if failures:
        raise typer.Exit(max(failure.exit_code for failure in failures))


def _check(seeds: int | None, processes: int | None, first_seed: int) -> None:
    check_counts(seeds=seeds, processes=processes)
    if first_seed < 0:
        raise InvalidSettingError(f"--first-seed: {first_seed} is negative")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise WorldError("matplotlib is not installed (pip install 'ones[report]')") from None
