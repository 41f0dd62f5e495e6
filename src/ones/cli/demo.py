"""`ones demo`: see it work in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.output import JSON_HELP, print_json, print_results, progress_of_jobs, say


def demo(
    out: Annotated[Path, typer.Option(help="Where logs and the picture go.")] = Path("out/demo"),
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Simulate 50 jobs on 64 GPUs under fifo and equi: a table and a picture of who ran where."""
    from ones.lab.demo import GPUS, JOBS
    from ones.lab.demo import demo as show

    rows, picture = show(out, progress_of_jobs)
    if json:
        print_json({"rows": rows, "picture": None if picture is None else str(picture)})
    else:
        print_results(f"{JOBS} jobs of the paper's workload on {GPUS} GPUs, simulated", rows)
    if picture is None:
        say("no picture: matplotlib is not installed (pip install 'ones[report]')")
    else:
        say(f"who had which GPU, with which batch: {picture}")
