"""`ones bench sim`, `search` and `embed`: the scheduler in simulators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.bench.output import print_rows
from ones.cli.options import Json, parse_numbers
from ones.cli.output import say
from ones.errors import InvalidSettingError

#: largest cluster of a quick run
QUICK_GPUS = 256
SIM_COLUMNS = {
    "policy": "policy", "gpus": "GPUs", "jobs": "jobs", "event": "event", "n": "n",
    "microseconds_per_event": "us/event", "ratio": "x rival", "events_per_second": "events/s",
    "peak_mb": "peak MB", "wall_seconds": "wall s",
}  # fmt: skip
SEARCH_COLUMNS = {
    "case": "case", "ms_per_generation": "ms/generation",
    "reference_ms_per_generation": "plain Python ms", "gap_percent_0_1s": "gap % 0.1 s",
    "gap_percent_1s": "gap % 1 s", "warm_gap_percent": "gap % warm",
    "greedy_gap_percent": "greedy %", "annealing_gap_percent": "annealing %",
    "pollux_gap_percent": "Pollux %", "added_percent": "added %",
    "startup_seconds": "start-up s", "peak_mb": "peak MB",
}  # fmt: skip
EMBED_COLUMNS = {
    "policy": "policy", "cost_seconds": "s per change", "n": "jobs", "mean_jct_seconds": "mean s",
    "rival": "rival", "ratio": "x rival", "ratio_low": "95 % from", "ratio_high": "to",
    "median_jct_seconds": "median s", "p99_jct_seconds": "99 % within s",
    "rescales": "rescales", "preemptions": "preemptions", "size_changes": "size changes",
    "taken_back": "taken back", "policy_cpu_seconds": "policy CPU s",
}  # fmt: skip


def sim(
    policy: Annotated[
        str, typer.Option(help="Scheduling policy; its decisions are part of the cost.")
    ] = "fifo",
    gpus: Annotated[
        str | None, typer.Option(help="Cluster sizes, as 64,1024; the first is the rival.")
    ] = None,
    jobs: Annotated[str | None, typer.Option(help="Jobs for each size, as 5000,20000.")] = None,
    load: Annotated[
        float | None, typer.Option(help="Single-GPU seconds that arrive per GPU-second.")
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Encode every entry for the run log as well.")
    ] = False,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Only whole runs of the paper's workload, with each policy."),
    ] = False,
    json: Json = False,
) -> None:
    """Measure the cost of an event in the simulator, by kind of event and cluster size.

    Without sizes, also whole runs of 50 jobs on 64 GPUs, the paper's workload, for each policy.

    Example: ones bench sim --gpus 64,1024 --jobs 640,10000 --load 0.8
    """
    from ones.lab.bench.sim import CASES, LOAD, bench_paper, bench_sim
    from ones.policies import names, settings_of

    settings_of(policy)  # raises for an unknown name
    sizes = parse_numbers("gpus", gpus, int, at_least=1) or [size for size, _ in CASES]
    usual = [dict(CASES).get(size, 10 * size) for size in sizes]
    counts = parse_numbers("jobs", jobs, int, at_least=1) or usual
    if len(counts) != len(sizes):
        raise InvalidSettingError(f"--jobs: {len(counts)} numbers for {len(sizes)} sizes")
    cases = tuple(zip(sizes, counts, strict=True))
    rows = []
    if not paper:
        rows += bench_sim(policy, cases, load=LOAD if load is None else load, log=log, progress=say)
    if paper or (gpus is None and jobs is None):
        rows += bench_paper(names(), progress=say)
    print_rows("sim", rows, json, "simulator", SIM_COLUMNS)


def search(
    quick: Annotated[bool, typer.Option("--quick", help="Only 16, 64 and 256 GPUs.")] = False,
    json: Json = False,
) -> None:
    """Measure speed and quality of the evolutionary search, against greedy, annealing and optimum.

    Example: ones bench search --quick
    """
    from ones.lab.bench.search.benchmark import CASES, bench_search
    from ones.lab.bench.search.run_states import bench_states

    cases = tuple(case for case in CASES if not quick or case[0] <= QUICK_GPUS)
    rows = bench_search(cases, progress=say) + bench_states(quick=quick, progress=say)
    print_rows("search", rows, json, "evolutionary search", SEARCH_COLUMNS)


def embed(
    policies: Annotated[
        str, typer.Option(help="Policies, as `ones,equi`; `NAME:VARIANT` for a variant.")
    ] = "ones,equi,pollux,sia",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="POLICY.KEY=VALUE",
            help="A setting of a policy, or of one variant (NAME:VARIANT.KEY=VALUE); repeatable.",
        ),
    ] = None,
    rival: Annotated[
        str,
        typer.Option(
            help="Policy to compare with; or a JSON file of an earlier run: every policy is"
            " compared with itself."
        ),
    ] = "ideal",
    quick: Annotated[
        bool, typer.Option("--quick", help="One workload of 40 jobs, 30 s per change.")
    ] = False,
    workloads: Annotated[
        int | None, typer.Option(min=1, help="Number of workloads; default: 2.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Jobs of each workload; default: 160.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Laws of training: `noise-scale`, or `regimes`, which no policy assumes."
        ),
    ] = "noise-scale",
    workload: Annotated[
        Path | None, typer.Option(help="Instead: a workload of Pollux's artifact in CSV.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs, in nodes of 4.")] = 64,
    tick: Annotated[float, typer.Option(min=1.0, help="Seconds between decisions.")] = 60.0,
    costs: Annotated[
        str | None, typer.Option(help="Seconds lost per change, as 30,1.", show_default="30,1")
    ] = None,
    scatter: Annotated[
        float | None, typer.Option(min=0.0, help="Lognormal sigma of lengths; default: 0.3.")
    ] = None,
    hide_kinds: Annotated[
        bool, typer.Option("--hide-kinds", help="Hide the kinds of jobs from policies.")
    ] = False,
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first workload.")] = 1000,
    json: Json = False,
) -> None:
    """Compare policies in a second, independent model, with an oracle that knows the truth.

    Example: ones bench embed --quick --policies ones,equi
    """
    from ones.lab.bench.embed.benchmark import FULL, QUICK, bench_embed
    from ones.lab.processes import results_only

    usual = QUICK if quick else FULL
    trial = replace(
        usual,
        workloads=workloads or usual.workloads,
        jobs=jobs or usual.jobs,
        gpus=gpus,
        tick=tick,
        costs=parse_numbers("costs", costs, float, at_least=0.0) or usual.costs,
        scatter=usual.scatter if scatter is None else scatter,
        hide_kinds=hide_kinds,
        first_seed=first_seed,
        model=model,
        file=workload,
    )
    names = [name.strip() for name in policies.split(",")]
    with results_only():
        rows = bench_embed(names, trial, given=set_ or [], rival=rival, progress=say)
    print_rows("embed", rows, json, "second simulator", EMBED_COLUMNS)
