"""`ones compare`: simulates many runs and compares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ones.cli.options import (
    FirstSeed,
    Gap,
    GpusPerNode,
    HideKinds,
    JobsTaken,
    Json,
    Killed,
    LeaveOut,
    Mislabelled,
    OwnKinds,
    Processes,
    Requests,
    Rigid,
    Scatter,
    StartUp,
    check_counts,
    check_drawn,
    parse_numbers,
)
from ones.cli.output import (
    InterruptedRunError,
    print_json,
    print_table,
    progress_of_runs,
    say,
)
from ones.cli.settings import effective

if TYPE_CHECKING:
    from ones.lab.comparison.results import Comparison

#: the columns of the printed table
COLUMNS = {
    "label": "policy", "workload": "workload", "gpus": "GPUs", "rescaling": "rescaling",
    "load": "load", "n": "seeds",
    "mean_jct": "mean completion s", "mean_jct_low": "95 % from", "mean_jct_high": "to",
    "p99_jct": "99 % within s", "mean_exec": "running s", "mean_queue": "queueing s",
    "within_200s": "within 200 s", "finished": "jobs finished",
}  # fmt: skip


def compare(
    policies: Annotated[
        str,
        typer.Option(
            help="Policies, as `ones,fifo`; `NAME:VARIANT` for a variant; `all`: every policy."
        ),
    ],
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds.", show_default="10, or 3 with --quick")
    ] = None,
    first_seed: FirstSeed = 1000,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A first look: 3 seeds of the workloads `paper` and `paper-artifact` on 64 GPUs.",
        ),
    ] = False,
    gpus: Annotated[str, typer.Option(help="Cluster sizes, as 16,64.")] = "64",
    gpus_per_node: GpusPerNode = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help="Cost model of rescales: native, elastic, checkpoint, suspend; several as a list.",
            show_default="native",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="`paper`, `paper-calibrated`, `paper-artifact`, or a file: a trace in CSV or a run"
            " log; several with commas.",
            show_default="paper, or paper,paper-artifact with --quick",
        ),
    ] = None,
    jobs: JobsTaken = None,
    gap: Gap = None,
    load: Annotated[
        str | None,
        typer.Option(
            help="Instead of a gap: single-GPU seconds that arrive per GPU-second; as"
            " 0.8 or 0.5,0.8."
        ),
    ] = None,
    scatter: Scatter = None,
    requests: Requests = None,
    hide_kinds: HideKinds = False,
    own_kinds: OwnKinds = False,
    start_up: StartUp = None,
    leave_out: LeaveOut = "",
    mislabelled: Mislabelled = 0.0,
    killed: Killed = 0.0,
    rigid: Rigid = 0.0,
    physics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Change a parameter of the simulator, which policies do not see. Factors:"
            " `noise` (gradient noise scales), `reported-noise` (the same, only in reports),"
            " `network` (speed between nodes), `rescale` (cost of changes), `startup` (start of"
            " workers), `stragglers` (step times on slow nodes). Amounts: `loss-noise` (sigma),"
            " `loss-waves` (part of the loss); repeatable.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="POLICY.KEY=VALUE",
            help="A setting of a policy, or of one variant (NAME:VARIANT.KEY=VALUE); repeatable.",
        ),
    ] = None,
    processes: Processes = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the runs as they finish, tables, figures and a page."
            " The same command again runs only what is missing."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare policies over seeds, cluster sizes and cost models of rescales, in parallel.

    Example: ones compare --policies ones,equi,fifo --seeds 3 --gpus 16,64 --out out/compare
    """  # fmt: skip
    from contextlib import ExitStack
    from dataclasses import replace

    from ones.lab.comparison.execution import RunPlan, run_missing
    from ones.lab.comparison.grid import Grid
    from ones.lab.comparison.page import write_page
    from ones.lab.comparison.process_pool import available_cores
    from ones.lab.comparison.result_store import ResultStore, locked
    from ones.lab.comparison.results import Comparison, records_of, write_results
    from ones.lab.comparison.variants import parse_variants
    from ones.lab.runs import GENERATED, RunSpec
    from ones.policies import names
    from ones.sim.perturbed import factors_of
    from ones.workload.variations import JobShares

    workloads = _workloads(workload, quick)
    for name in workloads:
        check_drawn(name, gap=gap, scatter=scatter)
    seeds = (3 if quick else 10) if seeds is None else seeds
    settings = effective(gpus_per_node=gpus_per_node, jobs=jobs, gap=gap, scatter=scatter)
    chosen = settings.settings.sim
    check_counts(seeds=seeds, processes=processes)
    labels = names() if policies == "all" else [name.strip() for name in policies.split(",")]
    grid = Grid(
        variants=parse_variants(labels, settings=settings.settings.policy, given=set_ or []),
        seeds=range(first_seed, first_seed + seeds),
        gpus=parse_numbers("gpus", gpus, int),
        mechanisms=[part.strip() for text in mechanism or ["native"] for part in text.split(",")],
        loads=[None] if load is None else parse_numbers("load", load, float),
        base=RunSpec(
            policy="",
            gpus_per_node=chosen.gpus_per_node,
            gap=chosen.gap,
            scatter=chosen.scatter,
            requests=requests,
            hide_kinds=hide_kinds,
            own_kinds=own_kinds,
            start_up=start_up,
            left_out=leave_out,
            shares=JobShares(mislabelled=mislabelled, killed=killed, rigid=rigid),
            physics=factors_of(physics or []),
        ),
    )
    cells = [
        cell
        for name in workloads
        for cell in replace(
            grid,
            base=replace(grid.base, workload=name, jobs=chosen.jobs if name in GENERATED else jobs),
        ).cells()
    ]
    at_once = processes or available_cores()
    with ExitStack() as stack:
        home = None if out is None else stack.enter_context(locked(out))
        store = ResultStore(home)
        plan = RunPlan.of(cells, store, at_once)
        say(f"{plan} ({at_once} at a time)")
        try:
            with progress_of_runs("comparing", len(plan.missing)) as watch:
                failures = run_missing(plan, store, at_once, watch)
        except KeyboardInterrupt:
            raise InterruptedRunError(_interrupted(home, len(store))) from None
        comparison = Comparison(records_of(cells, store), failures)
        written = [] if home is None else write_results(comparison, home)
        if home is not None:
            written.append(write_page(comparison, home))
    _print(comparison, json=json)
    if written:
        say(f"kept in {out}: {', '.join(path.name for path in written)}")
    _say_problems(comparison)
    if comparison.exit_code:
        raise typer.Exit(comparison.exit_code)


def _workloads(text: str | None, quick: bool) -> list[str]:
    default = "paper,paper-artifact" if quick else "paper"
    return [name.strip() for name in (text or default).split(",")]


def _print(comparison: Comparison, *, json: bool) -> None:
    result = comparison.to_json()
    if json:
        print_json(result)
    else:
        rows = result["summary"]
        shown = {k: v for k, v in COLUMNS.items() if any(row[k] is not None for row in rows)}
        if len({row["workload"] for row in rows}) < 2:
            shown.pop("workload", None)
        print_table(
            None, list(shown.values()), [[_cell(row, key) for key in shown] for row in rows]
        )


def _say_problems(comparison: Comparison) -> None:
    for record in comparison.records:
        left = record.row["unfinished"]
        if left:
            jobs_text = "1 job" if left == 1 else f"{left:,} jobs"
            say(f"ones: {record.cell.name}: {jobs_text} unfinished when the simulation ended")
    for failure in comparison.failures:
        say(f"ones: {failure}")


def _cell(row: Mapping[str, Any], key: str) -> object:
    value = row[key]
    if key == "rescaling" and row["mechanism"] == "native":
        return f"{value} (native)"
    if key == "within_200s" and value is not None:
        return f"{value:.0%}"
    return int(value) if key == "finished" and value == int(value) else value


def _interrupted(home: Path | None, store: int) -> str:
    if home is None:
        return "interrupted; nothing was kept (--out DIR keeps runs as they finish)"
    return f"interrupted; {store:,} finished runs are in {home}; run the same command to continue"
