"""`ones slurm`: the service on allocations of a Slurm cluster."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from ones.cli.options import Json, StateDirectory
from ones.cli.settings import effective
from ones.errors import UserError

slurm = typer.Typer(no_args_is_help=True, help="The service on allocations of Slurm.")

STATE = typer.Option("--dir", help="State directory, shared by all nodes.", metavar="DIR")
LEAD = typer.Option(help="Seconds before the time limit at which jobs save their work.")
SLOTS = typer.Option(help="CPU slots of each node without GPUs.")


@slurm.command()
def script(
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node.")] = 0,
    time: Annotated[str, typer.Option(help="Time limit, in Slurm's format.")] = "1:00:00",
    state: Annotated[Path | None, STATE] = None,
    slots: Annotated[int, SLOTS] = 1,
    lead: Annotated[int, LEAD] = 300,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="A further option for sbatch; may be repeated."),
    ] = None,
) -> None:
    """Print a script for sbatch that serves its nodes to the service, and starts one if none runs.

    Example: ones slurm script --nodes 4 --gpus-per-node 4 --time 12:00:00
    """
    import shutil
    import sys

    from ones.control.statedir import StateDir
    from ones.launchers.slurm.batch_script import BatchScript

    found = effective(section="service", state=str(state.absolute()) if state else None)
    beside = Path(sys.executable).with_name("ones")
    command = str(beside) if beside.exists() else shutil.which("ones") or "ones"
    made = BatchScript(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        slots=slots,
        time=time,
        lead=lead,
        state=str(StateDir.of(found.settings.service.state).path),
        command=command,
        options=tuple(option or ()),
    )
    print(made.text(), end="")


@slurm.command()
def auto(
    max_nodes: Annotated[
        int | None, typer.Option(help="Maximum number of nodes of all allocations.")
    ] = None,
    time: Annotated[
        str, typer.Option("--time", "-t", metavar="TIME", help="Time limit of each: 4h, 1-02:00.")
    ] = "1h",
    nodes: Annotated[int, typer.Option(help="Nodes of each allocation.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node.")] = 0,
    slots: Annotated[int, SLOTS] = 1,
    idle: Annotated[
        str,
        typer.Option(metavar="TIME", help="End an allocation without workers after this time."),
    ] = "5m",
    lead: Annotated[int, LEAD] = 300,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Of Slurm.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Of Slurm.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="A further option for sbatch; may be repeated."),
    ] = None,
    off: Annotated[
        bool, typer.Option("--off", help="Ask for no more allocations, and end the present ones.")
    ] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Let the service ask Slurm for nodes when jobs wait, and return them when they are idle.
    Without options: show what it asks for.

    Example: ones slurm auto --max-nodes 8 --gpus-per-node 4 --time 4h --partition gpu
    """
    from ones.cli.client import connect
    from ones.cli.cluster import auto_line
    from ones.cli.durations import seconds_of
    from ones.cli.output import print_json, say

    if off and max_nodes is not None:
        raise UserError("--off: not together with --max-nodes")
    client, path = connect(state), "/api/slurm/auto"
    if off:
        client.delete(path)
        say("the service asks Slurm for no more allocations")
        return
    found = client.get(path)
    if max_nodes is not None:
        minutes = ceil(seconds_of(time, "--time") / 60)
        given = {"--partition": partition, "--account": account}
        options = [f"{name}={value}" for name, value in given.items() if value]
        found = client.put(
            path,
            {
                "max_nodes": max_nodes,
                "time": f"{minutes // 60}:{minutes % 60:02}:00",
                "nodes": nodes,
                "gpus_per_node": gpus_per_node,
                "slots": slots,
                "idle_seconds": seconds_of(idle, "--idle"),
                "lead": lead,
                "options": [*options, *(option or ())],
            },
        )
    if json:
        print_json(found)
    elif found is None:
        say("the service does not ask Slurm for nodes; see: ones slurm auto --help")
    else:
        say(auto_line(found))


@slurm.command()
def serve(
    state: Annotated[Path | None, STATE] = None,
    slots: Annotated[int, SLOTS] = 1,
    lead: Annotated[int, LEAD] = 300,
    controller: Annotated[
        bool, typer.Option(help="Start the controller here if none runs for this directory.")
    ] = True,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Start the controller without TLS.")
    ] = False,
) -> None:
    """Serve the nodes of this allocation to the service of a state directory until it ends.

    Example: ones slurm serve --dir ~/ones
    """
    from ones.control.slurm_allocation import serve_allocation
    from ones.control.statedir import StateDir
    from ones.launchers.slurm.launcher import LOOPBACK, own_host

    found = effective(section="service", state=str(state) if state else None)
    service = found.settings.service
    serve_allocation(
        StateDir.of(service.state),
        slots=slots,
        lead=lead,
        # other nodes must reach the controller
        host=own_host() if service.host == LOOPBACK else service.host,
        with_controller=controller,
        insecure=insecure or service.insecure,
    )
