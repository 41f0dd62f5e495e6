"""End what a service that is down has left on a Ray cluster."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ones.errors import WorldError
from ones.launchers.ray.launcher import RayLauncher
from ones.launchers.ray.options import RayOptions

log = logging.getLogger(__name__)


def stop_workers(root: Path, options: RayOptions) -> None:
    """They save their work, and wait for the next. Where Ray cannot be asked to, it is said how
    they end."""
    # no work for workers now: what they would need for it is not looked at
    launcher = RayLauncher(root, replace(options, shared=""), waits=False)
    if not launcher.may_have_workers():
        launcher.close(kill=False)
        return
    with suppress(WorldError):  # it is told below
        launcher.open(lambda event: None)
        launcher.close(kill=True)
    if launcher.failure:
        how = f"within {options.lease_seconds:g} s" if launcher.is_gone else "once its head is gone"
        log.warning(f"{launcher.failure}; workers end by themselves {how}")
