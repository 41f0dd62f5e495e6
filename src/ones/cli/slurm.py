"""`ones slurm`: the service on allocations of a Slurm cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ones.cli.settings import effective

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
