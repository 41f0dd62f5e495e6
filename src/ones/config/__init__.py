"""One frozen tree of settings, with the origin of every value.

Policies and launchers have settings of their own (`[policy.NAME]`, `[launcher.NAME]`, and for
launchers of ours also `[service]`); they never see this tree. Nothing is read at import time.
"""

from __future__ import annotations

from ones.config.loading import (
    FILE_NAME,
    PREFIX,
    SECTIONS,
    Effective,
    load,
    settings_in,
)
from ones.config.settings import ServiceSettings, Settings, SimSettings
from ones.config.values import convert, of_launcher, of_policy

__all__ = [
    "FILE_NAME",
    "PREFIX",
    "SECTIONS",
    "Effective",
    "ServiceSettings",
    "Settings",
    "SimSettings",
    "convert",
    "load",
    "of_launcher",
    "of_policy",
    "settings_in",
]
