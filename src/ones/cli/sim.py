"""`ones sim`: one simulated run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import (
    Gap,
    GpusPerNode,
    HideKinds,
    JobsTaken,
    Json,
    Killed,
    LeaveOut,
    Mislabelled,
    OwnKinds,
    Requests,
    Rigid,
    Scatter,
    StartUp,
    check_drawn,
)
from ones.cli.output import (
    InterruptedRunError,
    print_json,
    print_results,
    progress_of_jobs,
    say,
)
from ones.cli.settings import effective, policy_settings
from ones.errors import InvalidSettingError

POLICY_HELP = (
    "Scheduling policy: a name (`ones config` lists them with their settings) or a Python file with"
    " a policy."
)


def _policies(incomplete: str) -> list[str]:
    from ones.policies import names

    return [name for name in names() if name.startswith(incomplete)]


def sim(
    policy: Annotated[str | None, typer.Option(help=POLICY_HELP, autocompletion=_policies)] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of the cluster.")] = None,
    gpus_per_node: GpusPerNode = None,
    nodes_per_rack: Annotated[
        int, typer.Option(help="Nodes of each rack, which the policy `philly` uses; 0: no racks.")
    ] = 0,
    workload: Annotated[
        str,
        typer.Option(
            help="`paper`, `paper-calibrated`, `paper-artifact`, or a file: a trace in CSV (ours,"
            " Philly, Alibaba, Pollux, the paper's authors') or a run log."
        ),
    ] = "paper",
    jobs: JobsTaken = None,
    gap: Gap = None,
    load: Annotated[
        float | None,
        typer.Option(
            help="Instead of a gap: single-GPU seconds that arrive per GPU-second. A file's"
            " arrivals are stretched to it."
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
    seed: Annotated[int | None, typer.Option(help="Seed of workload, noise and policy.")] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(help="Cost model of rescales: native, elastic, checkpoint, suspend."),
    ] = None,
    fair_share: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS",
            help="Half-life of past GPU use, which lowers the priority of a user's jobs; 0: none.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the policy; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for run log, result and picture.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run in that directory.")
    ] = False,
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Write snapshots beside the log.")
    ] = False,
    json: Json = False,
) -> None:
    """Simulate a workload under one policy.

    Example: ones sim --policy equi --gpus 64 --jobs 50 --seed 1 --out out/equi
    """
    from ones.lab.processes import results_only
    from ones.lab.runs import (
        GENERATED,
        LOG_NAME,
        RESULT_NAME,
        Run,
        RunSpec,
        draw_run,
        fresh_directory,
    )
    from ones.workload.variations import JobShares

    if snapshots and out is None:
        raise InvalidSettingError("--snapshots: only together with --out, which writes the log")

    check_drawn(workload, gap=gap, scatter=scatter)
    settings = effective(
        policy=policy,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        jobs=jobs,
        gap=gap,
        scatter=scatter,
        seed=seed,
        mechanism=mechanism,
        fair_share_half_life_hours=fair_share,
    )
    chosen = settings.settings.sim
    run = Run(
        RunSpec(
            policy=chosen.policy,
            settings=policy_settings(settings, chosen.policy, set_ or []),
            workload=workload,
            gpus=chosen.gpus,
            gpus_per_node=chosen.gpus_per_node,
            nodes_per_rack=nodes_per_rack,
            jobs=chosen.jobs if workload in GENERATED else jobs,
            gap=chosen.gap,
            load=load,
            scatter=chosen.scatter,
            requests=requests,
            hide_kinds=hide_kinds,
            own_kinds=own_kinds,
            start_up=start_up,
            left_out=leave_out,
            shares=JobShares(mislabelled=mislabelled, killed=killed, rigid=rigid),
            seed=chosen.seed,
            mechanism=chosen.mechanism,
            fair_share_half_life_hours=chosen.fair_share_half_life_hours,
        )
    )
    directory = None if out is None else fresh_directory(out, overwrite=overwrite)
    n_jobs = len(run.trace.jobs)
    title = f"{run.trace.name}: {n_jobs} jobs on {chosen.gpus} GPUs under {chosen.policy}"
    try:
        with results_only(), progress_of_jobs(chosen.policy, n_jobs) as progress:
            if directory is None:
                row = run.carry_out(progress=progress)
            else:
                row = run.carry_out_into(directory, snapshots=snapshots, progress=progress)
    except KeyboardInterrupt:
        if directory is None:
            raise
        raise InterruptedRunError(
            f"interrupted; the log so far is {directory / LOG_NAME}"
        ) from None
    if json:
        print_json(row)
    else:
        print_results(title, [row])
    if run.left_out:
        say(f"{run.left_out:,} jobs of {workload} cannot be simulated and were left out")
    not_finished = [f"{row[how]:,} {how}" for how in ("failed", "cancelled", "refused") if row[how]]
    if not_finished:
        say(f"not finished: {' and '.join(not_finished)}")
    if row["unfinished"]:
        left = "1 job is" if row["unfinished"] == 1 else f"{row['unfinished']:,} jobs are"
        say(f"ones: {left} unfinished: no further event was possible")
    if directory is not None:
        picture = draw_run(directory, title)
        kept = [LOG_NAME, RESULT_NAME] + ([] if picture is None else [picture.name])
        say(f"kept in {directory}: {', '.join(kept)}")
        if picture is None:
            say("no picture: matplotlib is not installed (pip install 'ones[report]')")
