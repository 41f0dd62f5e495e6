"""`ones trace`: generates, inspects, records and plays workloads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import (
    Gap,
    HideKinds,
    Json,
    OwnKinds,
    Requests,
    Scatter,
    StateDirectory,
    check_drawn,
)
from ones.cli.output import print_json, print_table, say
from ones.cli.play import play
from ones.cli.settings import effective
from ones.errors import UserError, WorldError

trace = typer.Typer(no_args_is_help=True, help="Generate, inspect, record and play workloads.")
trace.command()(play)


@trace.command()
def generate(
    workload: Annotated[
        str,
        typer.Option(
            help="Workload to generate: `paper`, `paper-calibrated` or `paper-artifact` (which has"
            " its own gaps, lengths and requests)."
        ),
    ] = "paper",
    jobs: Annotated[int | None, typer.Option(help="Number of jobs.")] = None,
    gap: Gap = None,
    load: Annotated[
        float | None,
        typer.Option(help="Instead of a gap: single-GPU seconds that arrive per GPU-second."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs that the load refers to.")] = None,
    scatter: Scatter = None,
    requests: Requests = None,
    hide_kinds: HideKinds = False,
    own_kinds: OwnKinds = False,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same trace.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Generate a trace of the paper's jobs as CSV.

    Example: ones trace generate --jobs 100 --load 0.8 --gpus 64 --seed 1 --out trace.csv
    """
    from ones.lab.runs import GENERATED, RunSpec, trace_of
    from ones.workload import write_trace

    if workload not in GENERATED:
        known = ", ".join(GENERATED)
        raise UserError(f"workload: {workload!r} cannot be generated; known: {known}")
    check_drawn(workload, gap=gap, scatter=scatter)
    chosen = effective(jobs=jobs, gap=gap, gpus=gpus, scatter=scatter, seed=seed).settings.sim
    made = trace_of(
        RunSpec(
            policy="",
            workload=workload,
            jobs=chosen.jobs,
            gap=chosen.gap,
            load=load,
            gpus=chosen.gpus,
            scatter=chosen.scatter,
            requests=requests,
            hide_kinds=hide_kinds,
            own_kinds=own_kinds,
            seed=chosen.seed,
        )
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
    file: Annotated[
        Path,
        typer.Argument(
            help="A trace in CSV (ours, Philly, Alibaba, Pollux) or a run log.", show_default=False
        ),
    ],
    gpus: Annotated[int | None, typer.Option(help="Cluster size that the load refers to.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw arrivals, lengths and sizes (.png or .svg).")
    ] = None,
    json: Json = False,
) -> None:
    """Summarise a workload: arrivals, lengths, sizes, kinds, and the load on a cluster.

    Example: ones trace inspect trace.csv --picture trace.png
    """
    from ones.lab.workload_summary import summarize_workload

    summary = summarize_workload(file, effective(gpus=gpus).settings.sim.gpus, picture)
    if json:
        print_json(summary)
    else:
        flat = {k: v for k, v in summary.items() if not isinstance(v, dict)}
        rows = [(k.replace("_", " "), _plain(v)) for k, v in flat.items()]
        print_table(str(file), ["", "value"], rows)
        for title in ("requested_gpus", "kinds", "incidents"):
            if summary[title]:
                counted = list(summary[title].items())[:MOST_ROWS]
                print_table(title.replace("_", " "), ["", "number"], counted)
    if picture is not None:
        say(f"drawn: {picture}")


@trace.command()
def physics(
    model: Annotated[
        str | None, typer.Argument(help="One model; default: all.", show_default=False)
    ] = None,
    numbers: Annotated[
        str, typer.Option(help="Set of numbers: `paper`, `calibrated` or `artifact`.")
    ] = "paper",
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for pictures of speed and efficiency and their components."),
    ] = None,
    json: Json = False,
) -> None:
    """Show every number that the simulator uses, with its source and how reliable it is.

    Example: ones trace physics resnet50-imagenet --out out/physics
    """
    from ones.lab.physics_figures import draw_all, draw_model
    from ones.workload import numbers_of

    if out is not None and numbers != "paper":
        raise UserError("--out: pictures exist of the numbers `paper` only")
    found = numbers_of(numbers)
    if model is not None:
        found.kind(model)  # raises for an unknown name
    rows = [p for p in found.provenance if model in (None, p.table)]
    if json:
        print_json(
            {
                "sources": found.sources,
                "numbers": [
                    {"table": p.table, "name": p.name, "value": p.value, "trust": p.trust,
                     "source": p.source} for p in rows
                ],
            }
        )  # fmt: skip
    else:
        print_table(
            None,
            ["of", "number", "value", "trust", "source"],
            [(p.table, p.name, f"{p.value:g}", p.trust, p.source) for p in rows],
        )
    if out is not None:
        drawn = draw_all(out) if model is None else [draw_model(model, out)]
        say(f"drawn: {', '.join(str(path) for path in drawn)}")


@trace.command()
def record(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("run.jsonl"),
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Write the run log of the service as a file. The service may be running.

    Example: ones trace record --out week.jsonl
    """
    from ones.control.run_log_export import write_run_log
    from ones.control.statedir import StateDir

    found = effective(section="service", state=str(state) if state else None).settings.service
    directory = StateDir.of(found.state)
    if not found.database and not (directory.path / "ones.db").exists():
        raise WorldError(f"{directory.path}: no service has run here")
    entries = write_run_log(found.database or directory.database, out)
    if json:
        print_json({"file": str(out), "entries": entries})
    else:
        say(f"{entries:,} entries in {out}")


#: maximum number of rows in a table of kinds; without kinds, each job is one of its own
MOST_ROWS = 20


def _plain(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
