"""Makes the launcher of the settings, and stops its workers without a controller."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ones.config import ServiceSettings
from ones.control.statedir import StateDir
from ones.launchers import Launcher, LauncherContext, create
from ones.launchers.launchd_client import HTTP_SOCKET, SOCKET
from ones.launchers.registry import stop_workers

_USED = "launcher.json"  # in the directory of runs: name and settings of the last launcher


def launcher_of(settings: ServiceSettings, directory: StateDir, url: Callable[[], str]) -> Launcher:
    """The launcher of the settings. `url`: of the service, called when the launcher is opened."""
    name, given = settings.launcher, dict(settings.launchers.get(settings.launcher, {}))
    context = LauncherContext(
        runs=directory.runs,
        checkpoints=settings.checkpoints or str(directory.checkpoints),
        slots=settings.slots,
        host=settings.host,
        advertise=settings.advertise,
        launchd=launchd_of(settings),
        job_memory_gb=settings.job_memory_gb,
        job_processes=settings.job_processes,
        job_output_mb=settings.max_output_mb,
        users_checkpoints=not settings.checkpoints,
        url=url,
    )
    launcher = create(name, context, **given)
    used = {"name": name, "settings": given, "launchd": context.launchd}
    (directory.runs / _USED).write_text(json.dumps(used))
    return launcher


def launchd_of(settings: ServiceSettings) -> str:
    """The socket of ones-launchd; empty: jobs run as the user of the service."""
    if settings.launcher != "local" or settings.launchd == "none":
        return ""
    return settings.launchd or (str(SOCKET) if os.access(SOCKET, os.W_OK) else "")


def socket_of(settings: ServiceSettings) -> Path | None:
    """The Unix socket for users of this machine, if the service has one."""
    if settings.socket:
        return Path(settings.socket)
    return HTTP_SOCKET if launchd_of(settings) == str(SOCKET) else None


def stop_jobs(directory: StateDir) -> None:
    """Stop all workers of a service that is down. They save their work, and their jobs continue
    after the next start."""
    try:
        used = json.loads((directory.runs / _USED).read_text())
    except FileNotFoundError:
        used = {"name": "local", "settings": {}}
    context = LauncherContext(runs=directory.runs, launchd=used.get("launchd", ""))
    stop_workers(used["name"], context, **used["settings"])
