"""Options that several commands have, told in the same words everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StateDirectory = Annotated[
    Path | None, typer.Option(help="The service's directory.", metavar="DIR")
]

# of simulated workloads

GpusPerNode = Annotated[int | None, typer.Option(help="GPUs of each node.")]
JobsTaken = Annotated[
    int | None, typer.Option(help="Jobs to generate, or to take from a production trace.")
]
Gap = Annotated[float | None, typer.Option(help="Mean seconds between arrivals.")]
Scatter = Annotated[
    float | None, typer.Option(help="Lognormal sigma of job lengths within a kind.")
]
Requests = Annotated[str | None, typer.Option(help="Mix of requested GPUs: short, long or flat.")]
HideKinds = Annotated[bool, typer.Option("--hide-kinds", help="Make every job a kind of its own.")]

# of many runs

FirstSeed = Annotated[
    int, typer.Option(help="The first of them. 1 to 99 were used to choose settings.")
]
Processes = Annotated[
    int | None, typer.Option(help="Runs at a time; else as many as there are cores.")
]
