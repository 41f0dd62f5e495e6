"""`ones bench`: measured speed, each against a named rival in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.bench_embed import embed
from ones.cli.bench_faults import faults
from ones.cli.options import Json
from ones.cli.output import print_json, print_table, say
from ones.errors import InvalidSettingError, UnknownNameError

bench = typer.Typer(
    no_args_is_help=True, help="Measure speed; each figure against a named rival in the same run."
)


@bench.callback()
def _group() -> None:
    pass


@bench.command()
def sim(
    policy: Annotated[str, typer.Option(help="Whose decisions are in the price.")] = "fifo",
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
        typer.Option("--paper", help="Only whole runs of the paper's workload, under each policy."),
    ] = False,
    json: Json = False,
) -> None:
    """Cost of an event in the simulator, by kind of event and size of cluster.

    Without sizes, also whole runs of 50 jobs on 64 GPUs, the paper's workload, for each policy.

    Example: ones bench sim --gpus 64,1024 --jobs 640,10000 --load 0.8
    """
    from ones.lab.bench import framed
    from ones.lab.bench_sim import CASES, LOAD, bench_paper, bench_sim
    from ones.policies import names, settings_of

    settings_of(policy)  # refuses what nobody knows
    sizes = _numbers("gpus", gpus) or [case[0] for case in CASES]
    counts = _numbers("jobs", jobs) or [dict(CASES).get(size, 10 * size) for size in sizes]
    if len(counts) != len(sizes):
        raise InvalidSettingError(f"--jobs: {len(counts)} numbers for {len(sizes)} sizes")
    cases = tuple(zip(sizes, counts, strict=True))
    rows = []
    if not paper:
        rows += bench_sim(policy, cases, load=LOAD if load is None else load, log=log, progress=say)
    if paper or (gpus is None and jobs is None):
        rows += bench_paper(names(), progress=say)
    if json:
        print_json(framed("sim", rows))
        return
    columns = ["policy", "gpus", "jobs", "event", "n", "microseconds_per_event", "ratio",
               "events_per_second", "peak_mb", "wall_seconds"]  # fmt: skip
    heads = [
        "policy",
        "GPUs",
        "jobs",
        "event",
        "n",
        "us/event",
        "x rival",
        "events/s",
        "peak MB",
        "wall s",
    ]
    print_table("simulator", heads, [[row[c] for c in columns] for row in rows])


@bench.command()
def search(
    quick: Annotated[bool, typer.Option("--quick", help="Only 16, 64 and 256 GPUs.")] = False,
    json: Json = False,
) -> None:
    """Speed and quality of the evolutionary search, against greedy, annealing and the optimum.

    Example: ones bench search --quick
    """
    from ones.lab.bench import framed
    from ones.lab.bench_search import CASES, bench_search
    from ones.lab.bench_search_states import bench_states

    cases = tuple(case for case in CASES if not quick or case[0] <= QUICK_GPUS)
    rows = bench_search(cases, progress=say) + bench_states(quick=quick, progress=say)
    if json:
        print_json(framed("search", rows))
        return
    columns = ["case", "ms_per_generation", "reference_ms_per_generation", "gap_percent_0_1s",
               "gap_percent_1s", "warm_gap_percent", "greedy_gap_percent", "annealing_gap_percent",
               "pollux_gap_percent", "added_percent", "startup_seconds", "peak_mb"]  # fmt: skip
    heads = ["case", "ms/generation", "plain Python ms", "gap % 0.1 s", "gap % 1 s", "gap % warm",
             "greedy %", "annealing %", "Pollux %", "added %", "start-up s", "peak MB"]  # fmt: skip
    print_table("evolutionary search", heads, [[row.get(c) for c in columns] for row in rows])


@bench.command()
def convergence(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and 2 seeds.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each case; 5 unless told.")
    ] = None,
    curves: Annotated[
        Path | None, typer.Option(help="Keep loss and accuracy of every epoch in this JSON file.")
    ] = None,
    json: Json = False,
) -> None:
    """Real training: more workers with a fixed local batch, and batches that jump or grow.

    Example: ones bench convergence --quick
    """
    from ones.lab.bench import framed
    from ones.lab.bench_convergence import SEEDS, bench_convergence, save_curves

    chosen = None if seeds is None else range(SEEDS[0], SEEDS[0] + seeds)
    rows, found = bench_convergence(quick=quick, seeds=chosen, progress=say)
    if curves is not None:
        save_curves(curves, found)
    if json:
        print_json(framed("convergence", rows))
        return
    for figure, columns, heads in CONVERGENCE_TABLES:
        shown = [[row[c] for c in columns] for row in rows if row["figure"] == figure]
        print_table(CONVERGENCE_TITLES[figure], heads, shown)


@bench.command()
def rescale(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only 1 and 50 MB, each change once.")
    ] = False,
    sizes: Annotated[str | None, typer.Option(help="Megabytes of parameters, as 1,50,400.")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The sizes of the paper's models instead.")
    ] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each; 3 unless told.")] = None,
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="Also against torchrun, when workers are added.")
    ] = False,
    json: Json = False,
) -> None:
    """How long a job stands still when its workers change, against stopping and restarting it.

    Example: ones bench rescale --quick
    """
    from ones.lab.bench import framed
    from ones.lab.bench_rescale import QUICK_SIZES, REPEATS, SIZES, bench_rescale, paper_sizes

    chosen: list[float] = list(_numbers("sizes", sizes))
    if not chosen:
        chosen = list(paper_sizes() if paper else QUICK_SIZES if quick else SIZES)
    rows = bench_rescale(
        chosen,
        repeats=repeats or (1 if quick else REPEATS),
        with_torchrun=torchrun,
        progress=say,
    )
    if json:
        print_json(framed("rescale", rows))
        return
    columns = ["parameter_mb", "change", "n", "pause_ms", "agree_ms", "state_ms", "resume_ms",
               "rival", "rival_pause_ms", "ratio"]  # fmt: skip
    heads = ["MB", "workers", "n", "pause ms", "agree", "state", "resume", "rival", "its pause ms",
             "ratio"]  # fmt: skip
    print_table("pause of a job", heads, [[row[c] for c in columns] for row in rows])


@bench.command()
def overhead(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the small model, and 1 and 2 workers.")
    ] = False,
    workers: Annotated[str | None, typer.Option(help="How many, as 1,2,4.")] = None,
    starts: Annotated[
        int | None,
        typer.Option(min=1, help="Times that processes are started, 20 pairs each; 3 unless told."),
    ] = None,
    json: Json = False,
) -> None:
    """What a step of an elastic job costs, against DistributedDataParallel at its best.

    Example: ones bench overhead --quick
    """
    from ones.lab.bench import framed
    from ones.lab.bench_overhead import (
        MODELS,
        QUICK_MODELS,
        QUICK_WORKERS,
        STARTS,
        WORKERS,
        bench_overhead,
    )

    rows = bench_overhead(
        QUICK_MODELS if quick else MODELS,
        _numbers("workers", workers) or (QUICK_WORKERS if quick else WORKERS),
        starts=starts or STARTS,
        progress=say,
    )
    if json:
        print_json(framed("overhead", rows))
        return
    columns = ["model", "workers", "n", "step_ms", "rival_step_ms", "overhead_percent",
               "overhead_percent_high", "wall_overhead_percent", "elastic_us_per_step"]  # fmt: skip
    heads = ["model", "workers", "n", "CPU ms/step", "DDP ms/step", "more %", "95 % high",
             "wall more %", "elastic us/step"]  # fmt: skip
    print_table("step of an elastic job", heads, [[row[c] for c in columns] for row in rows])


@bench.command()
def fidelity(
    quick: Annotated[
        bool, typer.Option("--quick", help="Three jobs on three slots: that it runs, not how true.")
    ] = False,
    policies: Annotated[
        str | None, typer.Option(help="Only these, as ones,fifo; ones re-scales in place.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep run logs and state directories here.")
    ] = None,
    json: Json = False,
) -> None:
    """The simulator against real processes: the same paced jobs, and the error of each job.

    Takes about a quarter of an hour; leave the machine alone meanwhile.

    Example: ones bench fidelity --policies ones,fifo
    """
    from ones.cli.client import Client
    from ones.lab.bench import framed
    from ones.lab.bench_fidelity import RUNS, bench_fidelity

    chosen = None
    if policies is not None:
        known = dict(RUNS)
        chosen = [(name, _one_of("policies", name, known)) for name in policies.split(",")]
    rows = bench_fidelity(Client, quick=quick, runs=chosen, keep=keep, progress=say)
    if json:
        print_json(framed("fidelity", rows))
        return
    columns = ["case", "n", "mean_jct_seconds", "simulated_mean_jct_seconds",
               "mean_jct_error_percent", "mean_job_error_percent", "max_job_error_percent",
               "rescales", "simulated_rescales", "preemptions", "restarts", "losses"]  # fmt: skip
    heads = ["case", "jobs", "mean JCT s", "simulated s", "error %", "mean job error %",
             "max job error %", "re-scales", "simulated", "preemptions", "restarts",
             "lost workers"]  # fmt: skip
    table = [[row[c] for c in columns] for row in rows if "policy" in row]
    print_table("simulator against life", heads, table)
    for row in rows:
        if row["case"] == "order":
            print("live:     ", " < ".join(row["live_order"]))
            print("simulated:", " < ".join(row["simulated_order"]))


@bench.command()
def control(
    quick: Annotated[
        bool, typer.Option("--quick", help="A little of everything: that it runs, not how fast.")
    ] = False,
    policy: Annotated[str, typer.Option(help="Which policy decides.")] = "ones",
    json: Json = False,
) -> None:
    """The live service: submissions, first steps, decisions, restarts, CPU and memory.

    Takes about five minutes; leave the machine alone meanwhile.

    Example: ones bench control --quick
    """
    from ones.cli.client import Client
    from ones.lab.bench import framed
    from ones.lab.bench_control import FULL, QUICK, bench_control
    from ones.policies import settings_of

    settings_of(policy)  # refuses what nobody knows
    rows = bench_control(Client, QUICK if quick else FULL, policy=policy, progress=say)
    if json:
        print_json(framed("control", rows))
        return
    told = ("case", "policy")
    heads, table = ["case", "what", "value"], []
    for row in rows:
        table += [[row["case"], key, value] for key, value in row.items() if key not in told]
    print_table("the live service", heads, table)


@bench.command()
def scale(
    workers: Annotated[
        str | None, typer.Option(help="How many, as 1024,10240; multiples of --per-job.")
    ] = None,
    per_job: Annotated[int, typer.Option(help="Workers of each job but the wide one.")] = 8,
    seconds: Annotated[float, typer.Option(help="Of each stage of reporting.")] = 10.0,
    ray: Annotated[
        int | None,
        typer.Option(min=1, help="Instead: paced jobs on so many Ray nodes on this machine."),
    ] = None,
    per_node: Annotated[int, typer.Option(min=1, help="Slots of each Ray node.")] = 4,
    json: Json = False,
) -> None:
    """One controller against very many workers that do not train: reports, orders, memory.

    A quarter of them, but no more than 1,024, are one wide job.

    Example: ones bench scale --workers 128 --seconds 3
    """
    from ones.cli.client import Client
    from ones.lab.bench import framed
    from ones.lab.bench_scale import SIZES, bench_scale

    if ray is not None:
        _scale_on_ray(ray, per_node, seconds, json)
        return
    sizes = _numbers("workers", workers) or list(SIZES)
    if per_job < 1 or any(size < per_job or size % per_job for size in sizes):
        raise InvalidSettingError(f"--workers: {workers} are not multiples of {per_job}")
    rows = bench_scale(Client, sizes, per_job=per_job, seconds=seconds, progress=say)
    if json:
        print_json(framed("scale", rows))
        return
    heads = ["workers", "jobs", "all train, s", "paced/s", "acknowledged, ms", "p99", "CPU %",
             "at most/s", "orders to a job, ms", "to the wide one", "peak MB"]  # fmt: skip
    keys = ("workers", "jobs", "settled_seconds", "paced_reports_per_second", "paced_ack_ms",
            "paced_ack_p99_ms", "paced_cpu_percent", "reports_per_second", "plan_fanout_ms",
            "wide_fanout_ms", "peak_mb")  # fmt: skip
    print_table("one controller", heads, [[row[key] for key in keys] for row in rows])


def _scale_on_ray(nodes: int, per_node: int, seconds: float, json: bool) -> None:
    from ones.cli.client import Client
    from ones.lab.bench import framed
    from ones.lab.bench_scale_ray import bench_ray

    row = bench_ray(Client, nodes=nodes, per_node=per_node, seconds=seconds, progress=say)
    if json:
        print_json(framed("scale", [row]))
        return
    print_table(row["case"], ["what", "value"], [[k, v] for k, v in row.items() if k != "case"])


bench.command()(embed)
bench.command()(faults)


def _one_of(option: str, name: str, known: Mapping[str, str]) -> str:
    if name not in known:
        raise UnknownNameError(f"value of --{option}", name, known)
    return known[name]


CONVERGENCE_TITLES = {
    "workers": "epochs to the target accuracy: workers x local batch",
    "jump": "training loss when the batch grows 16-fold",
}
CONVERGENCE_TABLES = (
    ("workers",
     ["case", "n", "reached", "epochs_to_target", "epochs_to_target_low", "epochs_to_target_high",
      "ratio"],
     ["case", "n", "reached", "epochs", "fewest", "most", "x 1 worker"]),
    ("jump",
     ["case", "n", "loss_before", "peak_loss", "peak_loss_low", "peak_loss_high", "ratio",
      "epochs_to_recover", "final_accuracy"],
     ["case", "n", "loss before", "peak", "lowest", "highest", "x steady", "epochs to recover",
      "final accuracy"]),
)  # fmt: skip

#: largest cluster of a quick run
QUICK_GPUS = 256


def _numbers(name: str, text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSettingError(f"--{name}: {text!r} is not a list of whole numbers") from None
    if min(numbers) < 1:
        raise InvalidSettingError(f"--{name}: {min(numbers)} is not at least 1")
    return numbers
