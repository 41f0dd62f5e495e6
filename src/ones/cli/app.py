"""All commands, in the order in which `ones --help` shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ones import __version__
from ones.cli.audit import audit
from ones.cli.bench import bench
from ones.cli.change import hold, release, rerun, set_
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
from ones.cli.notify import notify
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
from ones.cli.usage import usage
from ones.cli.user import user
from ones.cli.wait import wait
from ones.cli.whatif import whatif

#: options that had another name; `ones ps` has a new option of such a name
FORMER_NAMES = {"state": "dir"}
#: names that commands have elsewhere; the help does not list them
ALIASES: dict[str, Callable[..., Any]] = {"status": ps, "queue": ps, "stop": cancel}


def _with_present_name(name: str) -> str:
    return FORMER_NAMES.get(name, name)


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": _with_present_name,
    },
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
_command: Callable[..., Any]
for _command in (up, down, link, submit):
    app.command()(_command)
app.command(context_settings={"token_normalize_func": str})(ps)
for _command in (show, why, logs, cancel):
    app.command()(_command)
for _alias, _command in ALIASES.items():
    app.command(_alias, hidden=True, context_settings={"token_normalize_func": str})(_command)
app.command("set")(set_)
for _command in (hold, release, rerun, wait, top, usage, whatif, doctor):
    app.command()(_command)
app.add_typer(cluster, name="cluster")
app.add_typer(user, name="user")
app.add_typer(notify, name="notify")
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
