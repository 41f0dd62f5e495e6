"""`ones bench`: benchmarks, each with a named baseline in the same run."""

from __future__ import annotations

import typer

from ones.cli.bench.service import control, faults, fidelity, forecasts, scale
from ones.cli.bench.simulation import embed, search, sim
from ones.cli.bench.training import convergence, overhead, rescale

bench = typer.Typer(
    no_args_is_help=True, help="Measure speed, each figure against a named rival in the same run."
)


@bench.callback()
def _group() -> None:
    pass


for command in (
    sim, search, convergence, rescale, overhead, fidelity, forecasts, control, scale, embed, faults,
):  # fmt: skip
    bench.command()(command)
