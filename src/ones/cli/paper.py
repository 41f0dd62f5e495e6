"""`ones paper`: the paper's evaluation, and sweeps beyond it."""

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
from ones.cli.paper_artifact import artifact as artifact_command
from ones.cli.paper_locked import evaluate_locked
from ones.cli.paper_readings import readings
from ones.errors import InvalidSettingError
from ones.extras import require

paper = typer.Typer(invoke_without_command=True)
paper.command("artifact")(artifact_command)
paper.command("readings")(readings)


@paper.callback()
def evaluation(
    context: typer.Context,
    out: Annotated[
        Path,
        typer.Option(
            help="Directory for the page, its figures and all runs. The same command again"
            " runs only what is missing."
        ),
    ] = Path("out/paper"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few seeds, sizes and variants; takes minutes.")
    ] = False,
    locked_: Annotated[
        bool,
        typer.Option(
            "--locked",
            help="The final evaluation: all rows at one commit on seeds from 2000, about 2.5 hours"
            " on 2 cores, with Holm's correction. With --quick: a trial of minutes.",
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Number of seeds; default: 10, or 2 with --quick; with --locked as many as there"
            " is time for."
        ),
    ] = None,
    first_seed: Annotated[
        int | None,
        typer.Option(
            help="First seed; default: 1000, with --locked 2000. Seeds 1 to 99 chose settings."
        ),
    ] = None,
    processes: Processes = None,
    training: Annotated[
        list[Path] | None,
        typer.Option(
            help="Output of `ones bench convergence --json` or `ones bench rescale --paper --json`,"
            " shown in the panels of training. May be given several times."
        ),
    ] = None,
    sweeps: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also show the results of `ones paper sweeps --out DIR`."),
    ] = None,
    artifact: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also show the result of `ones paper artifact --out DIR`."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Rebuild the paper's evaluation: a page with every figure and table beside the paper's.

    Example: ones paper --quick --out out/paper-quick
    """  # fmt: skip
    if context.invoked_subcommand is not None:
        return
    from ones.lab.comparison.execution import format_duration
    from ones.lab.comparison.process_pool import available_cores
    from ones.lab.comparison.result_store import ResultStore, locked
    from ones.lab.paper.artifact import read_artifact_panel
    from ones.lab.paper.design import FULL, QUICK, Design
    from ones.lab.paper.evaluation import evaluate, planned_runner, whole_plan, with_seeds
    from ones.lab.paper.measurements import measurements
    from ones.lab.paper.page import write_evaluation
    from ones.lab.paper.sweep_results import read_panels

    _check(seeds, processes, first_seed or 0)
    if locked_:
        panels = {"--training": training, "--sweeps": sweeps, "--artifact": artifact}
        for option in (name for name, given in panels.items() if given):
            raise InvalidSettingError(f"{option}: adds to the page, which --locked does not write")
        evaluate_locked(out, quick=quick, seeds=seeds, first_seed=first_seed, processes=processes,
                        json=json)  # fmt: skip
        return
    first_seed = 1000 if first_seed is None else first_seed
    beyond = [] if artifact is None else [read_artifact_panel(artifact)]
    beyond += [] if sweeps is None else read_panels(sweeps)
    measured = measurements(training or ())
    design = Design(with_seeds(QUICK if quick else FULL, seeds), first_seed)
    at_once = processes or available_cores()
    command = ["ones paper", *(["--quick"] if quick else [])]
    command += [] if seeds is None else [f"--seeds {seeds}"]
    command += [] if first_seed == 1000 else [f"--first-seed {first_seed}"]
    command += [f"--training {path.name}" for path in training or ()]
    command += [] if sweeps is None else ["--sweeps DIR"]
    command += [] if artifact is None else ["--artifact DIR"]
    with locked(out) as home:
        store = ResultStore(home)
        plan = whole_plan(design, store, at_once)
        say(f"plan: {plan} on {at_once} processes; kept in {home} as they finish")
        run_planned = planned_runner(store, at_once, partial(progress_of_runs, "evaluating"))
        try:
            found = evaluate(design, store, home, run_planned, at_once, measured, beyond)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted; {len(store):,} finished runs are in {home};"
                " run the same command to continue"
            ) from None
        written = write_evaluation(found, design, " ".join([*command, "--out DIR"]), home)
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
            help="Directory for runs, tables, figures and the page. The same command again runs"
            " only what is missing."
        ),
    ] = Path("out/sweeps"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few seeds, jobs and sizes; takes minutes.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Names of sweeps, as loads,physics; default: all.")
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            help="A production trace in CSV (Philly, Pollux, Alibaba): a sweep over its jobs. May"
            " be given several times."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds; default: 10, fewer for long runs.")
    ] = None,
    first_seed: FirstSeed = 1000,
    processes: Processes = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only print the equivalent `ones compare` commands.")
    ] = False,
    json: Json = False,
) -> None:
    """Run sweeps beyond the paper: loads, other physics, wrong predictions, sizes, fairness.

    The most important sweep comes first, and the page is written after each: it can be stopped at
    any time.

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
    command = ["ones paper sweeps", *(["--quick"] if quick else [])]
    command += [] if only is None else [f"--only {only}"]
    command += [f"--trace {path.name}" for path in trace or ()]
    command += [] if seeds is None else [f"--seeds {seeds}"]
    command += [] if first_seed == 1000 else [f"--first-seed {first_seed}"]
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
            return write_sweeps(shown, " ".join([*command, "--out DIR"]), home)

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
                f" {written()[1].name}; run the same command to continue"
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
    require("ones paper", "matplotlib")
