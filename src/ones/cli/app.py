"""All commands, in the order in which `ones --help` shows them."""

from __future__ import annotations

from typing import Annotated

import typer

from ones import __version__
from ones.cli.audit import audit
from ones.cli.bench import bench
from ones.cli.cluster import cluster
from ones.cli.compare import compare
from ones.cli.config import config
from ones.cli.demo import demo
from ones.cli.doctor import doctor
from ones.cli.drl import drl
from ones.cli.jobs import cancel, ps, show, why
from ones.cli.lab import lab
from ones.cli.link import link
from ones.cli.logs import logs
from ones.cli.paper import paper
from ones.cli.replay import replay
from ones.cli.run import run
from ones.cli.sim import sim
from ones.cli.slurm import slurm
from ones.cli.store import store
from ones.cli.submit import submit
from ones.cli.top import top
from ones.cli.trace import trace
from ones.cli.up import down, up
from ones.cli.user import user

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Share GPUs among training jobs: each job's GPUs and batch size change while it trains.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ones {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(demo)
for _command in (up, down, link, submit, ps, show, why, logs, cancel, top, doctor):
    app.command()(_command)
app.add_typer(cluster, name="cluster")
app.add_typer(user, name="user")
app.add_typer(lab, name="lab")
app.command()(audit)
app.command()(run)
app.command()(sim)
app.command()(replay)
app.command()(compare)
app.add_typer(paper, name="paper")
app.add_typer(trace, name="trace")
app.add_typer(drl, name="drl")
app.add_typer(bench, name="bench")
app.add_typer(slurm, name="slurm")
app.add_typer(store, name="store")
app.command()(config)
