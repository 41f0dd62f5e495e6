"""`ones bench fidelity`, `forecasts`, `control`, `scale` and `faults`: the live service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.bench.output import print_rows, print_rows_json
from ones.cli.options import Json, parse_numbers
from ones.cli.output import print_table, say
from ones.errors import InvalidSettingError, UnknownNameError

FIDELITY_COLUMNS = {
    "case": "case", "n": "jobs", "mean_jct_seconds": "mean JCT s",
    "mean_jct_seconds_sd": "sd", "simulated_mean_jct_seconds": "simulated s",
    "mean_jct_error_percent": "error %",
    "mean_job_error_percent": "mean job error %", "max_job_error_percent": "max job error %",
    "rescales": "rescales", "simulated_rescales": "simulated", "preemptions": "preemptions",
    "restarts": "restarts", "losses": "lost workers",
}  # fmt: skip
FORECAST_COLUMNS = {
    "case": "jobs are", "completed": "jobs", "n": "forecasts", "missing": "missing",
    "covered_percent": "within 90 % range, %", "covered_percent_at_20": "at 20 %",
    "covered_percent_at_50": "at 50 %", "covered_percent_at_80": "at 80 %",
    "early_percent": "earlier, %", "late_percent": "later, %",
    "median_range": "range / time left",
}  # fmt: skip
SCALE_COLUMNS = {
    "workers": "workers", "jobs": "jobs", "settled_seconds": "all train, s",
    "paced_reports_per_second": "paced/s", "paced_ack_ms": "acknowledged, ms",
    "paced_ack_p99_ms": "p99", "paced_cpu_percent": "CPU %", "reports_per_second": "at most/s",
    "plan_fanout_ms": "orders to a job, ms", "wide_fanout_ms": "to the wide one",
    "peak_mb": "peak MB",
}  # fmt: skip


def fidelity(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Three jobs on three slots: a test that it runs, not a measurement."
        ),
    ] = False,
    trace: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Jobs to run: mixed (14 jobs, 8 slots), bursts (15 short jobs in bursts, 4 slots)"
            " or long (a long job among 12 short ones, 4 slots).",
        ),
    ] = "mixed",
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            help="Live runs per policy; prints their mean and standard deviation. The simulation"
            " runs once.",
        ),
    ] = 1,
    policies: Annotated[str | None, typer.Option(help="Only these policies, as ones,fifo.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep run logs and state directories here.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare the simulator with real processes: the same paced jobs, and the error of each job.

    Takes about 4 minutes, and 10 minutes for each repeat; run nothing else on the machine
    meanwhile.

    Example: ones bench fidelity --trace bursts --policies ones,fifo --repeats 3
    """
    from ones.cli.client import Client
    from ones.lab.bench.fidelity.benchmark import RUNS, bench_fidelity
    from ones.lab.bench.fidelity.paced_jobs import TRACES

    if trace not in TRACES:
        raise UnknownNameError("value of --trace", trace, TRACES)
    chosen, known = None, dict(RUNS)
    if policies is not None:
        for name in policies.split(","):
            if name not in known:
                raise UnknownNameError("value of --policies", name, known)
        chosen = [(name, known[name]) for name in policies.split(",")]
    rows = bench_fidelity(
        Client,
        quick=quick,
        trace_name=trace,
        repeats=repeats,
        runs=chosen,
        keep=keep,
        progress=say,
    )
    if json:
        print_rows_json("fidelity", rows)
        return
    compared = [row for row in rows if "policy" in row]
    print_rows("fidelity", compared, json, "simulator against the live service", FIDELITY_COLUMNS)
    for row in rows:
        if row["case"] == "order":
            print("live:     ", " < ".join(row["live_order"]))
            print("simulated:", " < ".join(row["simulated_order"]))


def forecasts(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Two live jobs: a test that it runs, not a measurement."),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Simulated jobs.")] = 240,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated jobs.")] = 0,
    keep: Annotated[
        Path | None, typer.Option(help="Keep run log and state directory here.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure how often jobs end within the 90 % range of their forecasts, live and simulated.

    Takes about 5 minutes: 24 jobs on 8 slots, then 240 jobs in the simulator. Forecasts are those
    in effect at 20, 50 and 80 % of a job's life.

    Example: ones bench forecasts --json
    """
    from ones.cli.client import Client
    from ones.lab.bench.forecasts import bench_forecasts

    rows = bench_forecasts(Client, quick=quick, jobs=jobs, seed=seed, keep=keep, progress=say)
    print_rows("forecasts", rows, json, "forecasts and real ends of jobs", FORECAST_COLUMNS)


def control(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A little of everything: a test that it runs, not a measurement."
        ),
    ] = False,
    policy: Annotated[str, typer.Option(help="Scheduling policy.")] = "ones",
    json: Json = False,
) -> None:
    """Measure the live service: submissions, first steps, decisions, restarts, CPU and memory.

    Takes about 5 minutes; run nothing else on the machine meanwhile.

    Example: ones bench control --quick
    """
    from ones.cli.client import Client
    from ones.lab.bench.control.benchmark import FULL, QUICK, bench_control
    from ones.policies import settings_of

    settings_of(policy)  # raises for an unknown name
    rows = bench_control(Client, QUICK if quick else FULL, policy=policy, progress=say)
    if json:
        print_rows_json("control", rows)
        return
    table = [
        [row["case"], key, value]
        for row in rows
        for key, value in row.items()
        if key not in ("case", "policy")
    ]
    print_table("the live service", ["case", "what", "value"], table)


def scale(
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers, as 1024,10240; multiples of --per-job.")
    ] = None,
    per_job: Annotated[int, typer.Option(help="Workers of each job except the wide one.")] = 8,
    seconds: Annotated[float, typer.Option(help="Length of each stage of reporting.")] = 10.0,
    ray: Annotated[
        int | None,
        typer.Option(
            min=1, help="Instead: paced jobs on this number of Ray nodes on this machine."
        ),
    ] = None,
    per_node: Annotated[int, typer.Option(min=1, help="Slots of each Ray node.")] = 4,
    json: Json = False,
) -> None:
    """Measure one controller with many emulated workers: reports, orders, memory.

    A quarter of the workers, but no more than 1,024, are one wide job.

    Example: ones bench scale --workers 128 --seconds 3
    """
    from ones.cli.client import Client
    from ones.lab.bench.scale.benchmark import SIZES, bench_scale
    from ones.lab.bench.scale.ray import bench_ray

    if ray is not None:
        row = bench_ray(Client, nodes=ray, per_node=per_node, seconds=seconds, progress=say)
        if json:
            print_rows_json("scale", [row])
        else:
            values = [[key, value] for key, value in row.items() if key != "case"]
            print_table(row["case"], ["what", "value"], values)
        return
    sizes = parse_numbers("workers", workers, int, at_least=1) or list(SIZES)
    if per_job < 1 or any(size < per_job or size % per_job for size in sizes):
        raise InvalidSettingError(
            f"--workers: {workers} is not a list of multiples of --per-job {per_job}"
        )
    rows = bench_scale(Client, sizes, per_job=per_job, seconds=seconds, progress=say)
    print_rows("scale", rows, json, "one controller", SCALE_COLUMNS)


def faults(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 300,
    first_seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Only this seed, with a trace of its events.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Scheduling policy; default: chosen by the seed.")
    ] = None,
    without: Annotated[
        str | None, typer.Option(help="Kinds of faults to leave out, as crash,hostile.")
    ] = None,
    json: Json = False,
) -> None:
    """Test the live controller under a virtual clock: crashes, lost reports, full disks, hostile
    jobs.

    A seed decides every fault. Exit code 1 if a rule was violated; the seed is printed, and --seed
    runs it again with a trace.

    Example: ones bench faults --seeds 20
    """
    from ones.lab.bench.faults import bench_faults, replay_seed
    from ones.lab.faults import KINDS
    from ones.lab.processes import results_only
    from ones.policies import settings_of

    if policy is not None:
        settings_of(policy)  # raises for an unknown name
    left_out = [] if without is None else without.split(",")
    for name in left_out:
        if name not in KINDS:
            raise UnknownNameError("value of --without", name, KINDS)
    kinds = [kind for kind in KINDS if kind not in left_out]
    with results_only():
        if seed is None:
            rows = bench_faults(
                range(first_seed, first_seed + seeds), policy=policy, kinds=kinds, progress=say
            )
        else:
            rows, trace = replay_seed(seed, policy=policy, kinds=kinds)
            for line in trace:
                say(line)
    if json:
        print_rows_json("faults", rows)
    else:
        heads = ["case", "seeds", "virtual h", "faults", "violations", "seeds/s"]
        table = [
            [row["case"], row["seeds"], row["virtual_hours"], sum(row["faults"].values()),
             len(row["violations"]), row["seeds_per_second"]]
            for row in rows
        ]  # fmt: skip
        print_table("the live service under faults", heads, table)
    if any(row["violations"] for row in rows):
        raise typer.Exit(1)
