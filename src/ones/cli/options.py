"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ones.errors import InvalidSettingError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StateDirectory = Annotated[
    Path | None, typer.Option("--dir", help="State directory of the service.", metavar="DIR")
]

# options of simulated workloads

GpusPerNode = Annotated[int | None, typer.Option(help="GPUs of each node.")]
JobsTaken = Annotated[
    int | None, typer.Option(help="Jobs to generate, or to take from a production trace.")
]
Gap = Annotated[float | None, typer.Option(help="Mean seconds between arrivals.")]
Scatter = Annotated[
    float | None, typer.Option(help="Lognormal sigma of job lengths within a kind.")
]
Requests = Annotated[str | None, typer.Option(help="Mix of requested GPUs: short, long or flat.")]
StartUp = Annotated[
    float | None,
    typer.Option(help="Seconds until workers train after a start; default: those of the workload."),
]
LeaveOut = Annotated[str, typer.Option(metavar="KIND", help="Leave out the jobs of this kind.")]
Mislabelled = Annotated[
    float, typer.Option(help="Share of jobs (0 to 1) that have the label of another kind.")
]
Killed = Annotated[
    float, typer.Option(help="Share of jobs (0 to 1) that fail or are killed midway.")
]
Rigid = Annotated[
    float,
    typer.Option(help="Share of jobs (0 to 1) that are not elastic: GPUs and batch as requested."),
]
HideKinds = Annotated[
    bool, typer.Option("--hide-kinds", help="Hide the kinds of jobs from policies.")
]
OwnKinds = Annotated[bool, typer.Option("--own-kinds", help="Make every job a kind of its own.")]

# options of commands with many runs

FirstSeed = Annotated[
    int, typer.Option(help="First seed. Seeds 1 to 99 were used to choose settings.")
]
Processes = Annotated[int | None, typer.Option(help="Runs at a time; default: one per core.")]


Number = TypeVar("Number", int, float)


def parse_numbers(
    option: str, text: str | None, kind: type[Number], *, at_least: Number | None = None
) -> list[Number]:
    """The numbers of a list such as `1,2`, at least `at_least` or above 0; [] for None."""
    if text is None:
        return []
    expected = "whole numbers" if kind is int else "numbers"
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSettingError(f"--{option}: {text!r} is not a list of {expected}") from None
    least = min(numbers)
    if at_least is not None and not least >= at_least:
        raise InvalidSettingError(f"--{option}: {least:g} is not at least {at_least:g}")
    if at_least is None and not least > 0:
        raise InvalidSettingError(f"--{option}: {least:g} is not above 0")
    return numbers


def check_counts(**options: int | None) -> None:
    """Raise InvalidSettingError for a number below 1."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise InvalidSettingError(f"--{name}: {value} is not at least 1")


def check_drawn(workload: str, **options: float | None) -> None:
    """Raise InvalidSettingError for an option of generated jobs that the workload does not use."""
    for name, value in options.items():
        if value is not None and workload not in ("paper", "paper-calibrated"):
            raise InvalidSettingError(
                f"--{name}: {workload} has its own arrivals and lengths; only `paper` and"
                f" `paper-calibrated` take --{name}"
            )
