"""From settings to a launcher, inside of an allocation or outside of all."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from ones.launchers.probe import place
from ones.launchers.slurm.allocation import attend_in_background, current
from ones.launchers.slurm.launcher import SlurmLauncher
from ones.launchers.slurm.options import SlurmOptions
from ones.launchers.slurm.shared import Shared, Timing

#: seconds that a start waits for the nodes of its own allocation
PATIENCE = 30.0
LOOPBACK = "127.0.0.1"


def slurm_launcher(
    runs: Path, *, host: str, advertise: str, cpus: int | None, lead: float, checkpoints: str
) -> SlurmLauncher:
    """Where this process runs in an allocation, its nodes are taken. `cpus`: slots of each node
    without GPUs."""
    timing = Timing.from_text(os.environ.get("ONES_SLURM_TIMING", ""))
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    probes = (place(str(runs)), place(checkpoints))
    is_inside = bool(current())
    if is_inside:
        log = runs / "allocation.log"
        attend_in_background(runs, log, cpus=cpus or 1, lead=lead, timing=timing)
    patience = PATIENCE if is_inside else 0.0
    return SlurmLauncher(
        runs,
        SlurmOptions(
            host=host, advertise=advertise, timing=timing, probes=probes, patience=patience
        ),
    )


def stop_workers(runs: Path) -> None:
    """Of a service that is down: they save their work, and wait for the next. Nodes that can be
    reached have a moment to call."""
    timing = Timing.from_text(os.environ.get("ONES_SLURM_TIMING", ""))
    patience = timing.suspect if Shared(runs).others("") else 0.0
    host = _known_host(runs) or own_host()
    launcher = SlurmLauncher(runs, SlurmOptions(host=host, timing=timing, patience=patience))
    launcher.open(lambda event: None)
    launcher.close(kill=True)


def _known_host(runs: Path) -> str:
    """Where agents look for the controller, if that is an address of this machine."""
    address = Shared(runs).address()
    for host in address.hosts if address is not None else ():
        with suppress(OSError), socket.create_server((host, 0)):
            return host
    return ""


def own_host() -> str:
    """The address of this machine that other nodes of the cluster know."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK
