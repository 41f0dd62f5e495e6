"""`ones bench convergence`, `rescale` and `overhead`: real training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.bench.output import print_rows, print_rows_json
from ones.cli.options import Json, parse_numbers
from ones.cli.output import say
from ones.errors import InvalidSettingError

CONVERGENCE_TABLES = {
    "workers": ("epochs to the target accuracy: workers x local batch", {
        "case": "case", "n": "n", "reached": "reached", "epochs_to_target": "epochs",
        "epochs_to_target_low": "fewest", "epochs_to_target_high": "most", "ratio": "x 1 worker",
    }),
    "jump": ("training loss when the batch grows 16-fold", {
        "case": "case", "n": "n", "loss_before": "loss before", "peak_loss": "peak",
        "peak_loss_low": "lowest", "peak_loss_high": "highest", "ratio": "x steady",
        "epochs_to_recover": "epochs to recover", "final_accuracy": "final accuracy",
    }),
}  # fmt: skip
RESCALE_COLUMNS = {
    "parameter_mb": "MB", "change": "workers", "n": "n", "pause_ms": "pause ms",
    "agree_ms": "agree", "state_ms": "state", "resume_ms": "resume", "rival": "rival",
    "rival_pause_ms": "rival's pause ms", "ratio": "ratio",
}  # fmt: skip
OVERHEAD_COLUMNS = {
    "model": "model", "workers": "workers", "n": "n", "step_ms": "CPU ms/step",
    "rival_step_ms": "DDP ms/step", "overhead_percent": "more %",
    "overhead_percent_high": "95 % high", "wall_overhead_percent": "wall more %",
    "elastic_us_per_step": "elastic us/step",
}  # fmt: skip


def convergence(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and 2 seeds.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each case; default: 5.")] = None,
    curves: Annotated[
        Path | None, typer.Option(help="Keep loss and accuracy of every epoch in this JSON file.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure real training: more workers with a fixed local batch, and batches that jump or grow.

    Example: ones bench convergence --quick
    """
    from ones.lab.bench.convergence import SEEDS, bench_convergence, save_curves

    chosen = None if seeds is None else range(SEEDS[0], SEEDS[0] + seeds)
    rows, found = bench_convergence(quick=quick, seeds=chosen, progress=say)
    if curves is not None:
        save_curves(curves, found)
    if json:
        print_rows_json("convergence", rows)
        return
    for figure, (title, columns) in CONVERGENCE_TABLES.items():
        shown = [row for row in rows if row["figure"] == figure]
        print_rows("convergence", shown, json, title, columns)


def rescale(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only 1 and 50 MB, each change once.")
    ] = False,
    sizes: Annotated[str | None, typer.Option(help="Megabytes of parameters, as 1,50,400.")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Instead: the sizes of the paper's models.")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each; default: 3, with --unix 10.")
    ] = None,
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="Also against torchrun, when workers are added.")
    ] = False,
    unix: Annotated[
        str | None,
        typer.Option(
            help="Instead: against the same job as this Unix user, through ones-launchd."
            " Needs root."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the pause of a job when its workers change, against stopping and restarting it.

    Example: ones bench rescale --quick
    """
    from ones.lab.bench.elastic.rescale import (
        QUICK_SIZES,
        REPEATS,
        SIZES,
        bench_rescale,
        paper_sizes,
    )
    from ones.lab.bench.elastic.user_rescale import STARTS, bench_rescale_as_user

    chosen: list[float] = list(parse_numbers("sizes", sizes, int, at_least=1))
    if not chosen:
        chosen = list(paper_sizes() if paper else QUICK_SIZES if quick else SIZES)
    count = repeats or (1 if quick else REPEATS)
    if unix is not None:
        if torchrun:
            raise InvalidSettingError("--unix and --torchrun exclude each other")
        count = repeats or (1 if quick else STARTS)
        rows = bench_rescale_as_user(unix, chosen, repeats=count, progress=say)
    else:
        rows = bench_rescale(chosen, repeats=count, with_torchrun=torchrun, progress=say)
    print_rows("rescale", rows, json, "pause of a job", RESCALE_COLUMNS)


def overhead(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the small model, and 1 and 2 workers.")
    ] = False,
    workers: Annotated[str | None, typer.Option(help="Numbers of workers, as 1,2,4.")] = None,
    starts: Annotated[
        int | None,
        typer.Option(min=1, help="Starts of the processes, 20 pairs each; default: 3."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the cost of a step of an elastic job, against DistributedDataParallel at its best.

    Example: ones bench overhead --quick
    """
    from ones.lab.bench.elastic.overhead import (
        MODELS,
        QUICK_MODELS,
        QUICK_WORKERS,
        STARTS,
        WORKERS,
        bench_overhead,
    )

    rows = bench_overhead(
        QUICK_MODELS if quick else MODELS,
        parse_numbers("workers", workers, int, at_least=1) or (QUICK_WORKERS if quick else WORKERS),
        starts=starts or STARTS,
        progress=say,
    )
    print_rows("overhead", rows, json, "step of an elastic job", OVERHEAD_COLUMNS)
