"""`ones bench embed`: our policies in a simulator that is not ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import Json
from ones.cli.output import print_json, print_table, say
from ones.errors import InvalidSettingError

COLUMNS = {
    "policy": "policy", "cost_seconds": "s a change", "n": "jobs", "mean_jct_seconds": "mean s",
    "ratio": "x ideal", "median_jct_seconds": "median s", "p99_jct_seconds": "99 % within s",
    "rescales": "re-scales", "preemptions": "preemptions", "policy_cpu_seconds": "policy CPU s",
}  # fmt: skip


def embed(
    policies: Annotated[str, typer.Option(help="Names, as ones,equi.")] = "ones,equi,pollux,sia",
    quick: Annotated[
        bool, typer.Option("--quick", help="One workload of 40 jobs, 30 s a change.")
    ] = False,
    workloads: Annotated[int | None, typer.Option(min=1, help="How many; 2 unless told.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Of each; 160 unless told.")] = None,
    workload: Annotated[
        Path | None, typer.Option(help="A workload of Pollux's artifact in CSV, instead.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="In nodes of 4.")] = 64,
    tick: Annotated[float, typer.Option(min=1.0, help="Seconds between decisions.")] = 60.0,
    costs: Annotated[
        str | None, typer.Option(help="Seconds lost by a change, as 30,1.", show_default="30,1")
    ] = None,
    scatter: Annotated[
        float | None, typer.Option(min=0.0, help="Lognormal sigma of lengths; 0.3 unless told.")
    ] = None,
    hide_kinds: Annotated[
        bool, typer.Option("--hide-kinds", help="Tell no policy of which kind a job is.")
    ] = False,
    first_seed: Annotated[int, typer.Option(min=0, help="Of the first workload.")] = 1000,
    json: Json = False,
) -> None:
    """Our policies in a simulator that is not ours, against one that is told the truth.

    Example: ones bench embed --quick --policies ones,equi
    """
    from ones.lab.bench import framed, results_only
    from ones.lab.bench_embed import FULL, QUICK, bench_embed

    usual = QUICK if quick else FULL
    trial = replace(
        usual,
        workloads=workloads or usual.workloads,
        jobs=jobs or usual.jobs,
        gpus=gpus,
        tick=tick,
        costs=usual.costs if costs is None else _seconds(costs),
        scatter=usual.scatter if scatter is None else scatter,
        hide_kinds=hide_kinds,
        first_seed=first_seed,
        file=workload,
    )
    names = [name.strip() for name in policies.split(",")]
    with results_only():
        rows = bench_embed(names, trial, progress=say)
    if json:
        print_json(framed("embed", rows))
        return
    table = [[row[key] for key in COLUMNS] for row in rows]
    print_table("not our simulator", list(COLUMNS.values()), table)


def _seconds(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSettingError(f"--costs: {text!r} is not a list of numbers") from None
    if not min(found) >= 0:
        raise InvalidSettingError(f"--costs: {min(found):g} is not at least 0")
    return found
