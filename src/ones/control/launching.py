"""Which launcher the settings ask for, and how its workers are ended without a controller."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ones.config import ServiceSettings
from ones.control.statedir import StateDir
from ones.errors import InvalidSettingError, UnknownNameError, UserError
from ones.launchers import Launcher
from ones.launchers.devices import local_slots, look_at_gpus
from ones.launchers.local import LocalLauncher

NODE = "local"
LAUNCHERS = ("local", "ray", "slurm")
_SLURM = "slurm"  # in the directory of runs: nodes of allocations have been here
_RAY = "ray.json"  # in the directory of runs: how the nodes are reached, without secrets


def launcher_of(settings: ServiceSettings, directory: StateDir, url: Callable[[], str]) -> Launcher:
    """`url`: where workers reach the service; asked when the launcher is opened."""
    match settings.launcher:
        case "local":
            return _local(settings, directory)
        case "ray":
            return _ray(settings, directory, url)
        case "slurm":
            return _slurm(settings, directory)
        case other:
            raise UnknownNameError("launcher", other, LAUNCHERS)


def _local(settings: ServiceSettings, directory: StateDir) -> Launcher:
    slots = local_slots(NODE, directory.runs, settings.slots)
    if not any(not slot.used_by for slot in slots):
        raise UserError(_no_slots(len(slots)))
    look = partial(look_at_gpus, NODE, directory.runs)
    return LocalLauncher(directory.runs, slots, look=None if settings.slots else look)


def _no_slots(found: int) -> str:
    if found:
        return f"all {found} GPUs of this machine are in use by others; see nvidia-smi"
    return "no GPU was found; offer CPU slots with: ones up --slots 4"


def _ray(settings: ServiceSettings, directory: StateDir, url: Callable[[], str]) -> Launcher:
    from ones.launchers.ray import RayLauncher, RayOptions

    if not settings.ray_address:
        raise InvalidSettingError("address: with --launcher ray it must be said, as host:port")
    if settings.slots is not None:
        raise InvalidSettingError(
            "slots: of Ray's nodes they are counted by a resource: say --ray-slots NAME"
        )
    tls = (settings.ray_tls_certificate, settings.ray_tls_key, settings.ray_tls_ca)
    if any(tls) and not all(tls):
        raise InvalidSettingError("ray_tls: certificate, key and ca go together")
    options = RayOptions(
        address=settings.ray_address,
        instance=_instance(directory.runs),
        slots=settings.ray_slots,
        per_node=settings.ray_per_node,
        node_dir=settings.node_dir,
        lease_seconds=settings.lease_seconds,
        token_file=settings.ray_token,
        tls_certificate=settings.ray_tls_certificate,
        tls_key=settings.ray_tls_key,
        tls_ca=settings.ray_tls_ca,
        shared=settings.checkpoints or str(directory.checkpoints),
    )
    (directory.runs / _RAY).write_text(json.dumps(asdict(options)))
    return RayLauncher(directory.runs, options, url)


def _slurm(settings: ServiceSettings, directory: StateDir) -> Launcher:
    from ones.launchers.slurm.setup import slurm_launcher

    (directory.runs / _SLURM).touch()
    return slurm_launcher(
        directory.runs,
        host=settings.host,
        advertise=settings.advertise,
        cpus=settings.slots,
        lead=settings.slurm_lead,
        checkpoints=settings.checkpoints or str(directory.checkpoints),
    )


def _instance(runs: Path) -> str:
    """Tells our managers from those of other services on the same cluster."""
    file = runs / "instance"
    if not file.exists():
        file.write_text(secrets.token_hex(4))
    return file.read_text().strip()


def stop_jobs(directory: StateDir) -> None:
    """End all workers of a service that is down: they save their work, and wait for the next."""
    if (directory.runs / _SLURM).exists():
        from ones.launchers.slurm.setup import stop_workers

        stop_workers(directory.runs)
    elif (directory.runs / _RAY).exists():
        from ones.launchers.ray.options import RayOptions
        from ones.launchers.ray.setup import stop_workers as stop_on_ray

        options = RayOptions(**json.loads((directory.runs / _RAY).read_text()))
        stop_on_ray(directory.runs, options)
    else:
        launcher = LocalLauncher(directory.runs, [])
        launcher.open(lambda event: None)
        launcher.close(kill=True)
