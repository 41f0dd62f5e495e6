"""The launcher that the settings name, and how its workers are ended without a controller."""

from __future__ import annotations

import json
from collections.abc import Callable

from ones.config import ServiceSettings
from ones.control.statedir import StateDir
from ones.launchers import Launcher, LauncherContext, create
from ones.launchers.registry import stop_workers

_USED = "launcher.json"  # in the directory of runs: the launcher of the last start, its settings


def launcher_of(settings: ServiceSettings, directory: StateDir, url: Callable[[], str]) -> Launcher:
    """`url`: where workers reach the service; asked when the launcher is opened."""
    name, given = settings.launcher, dict(settings.launchers.get(settings.launcher, {}))
    context = LauncherContext(
        runs=directory.runs,
        checkpoints=settings.checkpoints or str(directory.checkpoints),
        slots=settings.slots,
        host=settings.host,
        advertise=settings.advertise,
        url=url,
    )
    launcher = create(name, context, **given)
    (directory.runs / _USED).write_text(json.dumps({"name": name, "settings": given}))
    return launcher


def stop_jobs(directory: StateDir) -> None:
    """End all workers of a service that is down. They save their work and wait for the next one."""
    try:
        used = json.loads((directory.runs / _USED).read_text())
    except FileNotFoundError:
        used = {"name": "local", "settings": {}}
    stop_workers(used["name"], LauncherContext(runs=directory.runs), **used["settings"])
