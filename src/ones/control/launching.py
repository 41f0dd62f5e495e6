"""Makes the launcher of the settings, and stops its workers without a controller."""

from __future__ import annotations

import json
from collections.abc import Callable

from ones.config import ServiceSettings
from ones.control.statedir import StateDir
from ones.launchers import Launcher, LauncherContext, create
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
        url=url,
    )
    launcher = create(name, context, **given)
    (directory.runs / _USED).write_text(json.dumps({"name": name, "settings": given}))
    return launcher


def stop_jobs(directory: StateDir) -> None:
    """Stop all workers of a service that is down. They save their work, and their jobs continue
    after the next start."""
    try:
        used = json.loads((directory.runs / _USED).read_text())
    except FileNotFoundError:
        used = {"name": "local", "settings": {}}
    stop_workers(used["name"], LauncherContext(runs=directory.runs), **used["settings"])
