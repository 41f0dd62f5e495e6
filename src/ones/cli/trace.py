"""`ones trace`: make workloads and look at them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.output import JSON_HELP, print_json, print_table, say
from ones.cli.settings import effective
from ones.errors import UserError, WorldError

trace = typer.Typer(no_args_is_help=True, help="Make workloads and look at them.")


@trace.command()
def generate(
    workload: Annotated[str, typer.Option(help="Which jobs: `paper`.")] = "paper",
    jobs: Annotated[int | None, typer.Option(help="How many.")] = None,
    gap: Annotated[float | None, typer.Option(help="Mean seconds between arrivals.")] = None,
    load: Annotated[
        float | None,
        typer.Option(help="Instead of a gap: single-GPU seconds that arrive per GPU-second."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="For how many GPUs the load is meant.")] = None,
    scatter: Annotated[
        float | None, typer.Option(help="Lognormal sigma of job lengths within a kind.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same trace.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; else standard output.")] = None,
) -> None:
    """Generate a trace of the paper's jobs as CSV.

    Example: ones trace generate --jobs 100 --load 0.8 --gpus 64 --seed 1 --out trace.csv
    """
    from ones.workload import gap_for_load, write_trace
    from ones.workload import generate as make

    if workload != "paper":
        raise UserError(f"workload: {workload!r} is not one that can be generated; known: paper")
    chosen = effective(jobs=jobs, gap=gap, gpus=gpus, scatter=scatter, seed=seed).settings.sim
    made = make(
        jobs=chosen.jobs,
        seed=chosen.seed,
        gap=chosen.gap if load is None else gap_for_load(load, chosen.gpus),
        scatter=chosen.scatter,
    )
    if out is None:
        write_trace(made, sys.stdout)
        return
    beside = out.with_name(out.name + ".part")
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            write_trace(made, file)
        beside.replace(out)
    except OSError as problem:
        beside.unlink(missing_ok=True)
        raise WorldError(f"{out}: cannot be written: {problem.strerror}") from problem
    say(f"{len(made.jobs)} jobs in {out}")


@trace.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A trace in CSV.", show_default=False)],
    gpus: Annotated[
        int | None, typer.Option(help="Cluster size that the load is told for.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Show what a trace holds: arrivals, sizes, kinds, and the load on a cluster."""
    from ones.workload import read_trace
    from ones.workload.summary import summary_of

    chosen = effective(gpus=gpus).settings.sim
    summary = summary_of(read_trace(file), chosen.gpus)
    if json:
        print_json(summary)
        return
    flat = {k: v for k, v in summary.items() if not isinstance(v, dict)}
    print_table(
        str(file), ["", "value"], [(k.replace("_", " "), _plain(v)) for k, v in flat.items()]
    )
    for title in ("requested_gpus", "kinds", "incidents"):
        if summary[title]:
            rows = [(str(k), v) for k, v in summary[title].items()]
            print_table(title.replace("_", " "), ["", "jobs" if title != "incidents" else ""], rows)


def _plain(value: object) -> str:
    return "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
