"""`ones bench faults`: the live service under simulated faults."""

from __future__ import annotations

from typing import Annotated

import typer

from ones.cli.options import Json
from ones.cli.output import print_json, print_table, say
from ones.errors import UnknownNameError


def faults(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 300,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Only this one, and print what happened in it.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Which policy decides; by the seed unless told.")
    ] = None,
    without: Annotated[
        str | None, typer.Option(help="Kinds of faults to leave out, as crash,hostile.")
    ] = None,
    json: Json = False,
) -> None:
    """The live controller under a virtual clock: crashes, lost reports, full disks, hostile jobs.

    A seed decides every fault. Exit code 1 if something that must hold did not; the seed is
    printed, and --seed plays it again with a trace.

    Example: ones bench faults --seeds 20
    """
    from ones.lab.bench import framed, results_only
    from ones.lab.bench_faults import bench_faults, replayed
    from ones.lab.faults import KINDS
    from ones.policies import settings_of

    if policy is not None:
        settings_of(policy)  # refuses a name that is not known
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
            rows, trace = replayed(seed, policy=policy, kinds=kinds)
            for line in trace:
                say(line)
    if json:
        print_json(framed("faults", rows))
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
