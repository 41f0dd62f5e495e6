"""The settings, as one frozen tree with the origin of every value.

Policies and launchers have settings of their own (`[policy.NAME]`, `[launcher.NAME]`; those of
built-in launchers may also be in `[service]`) and do not see this tree. Nothing is read at import.
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
from ones.config.settings import ServiceSettings, Settings, SimSettings, half_life_seconds
from ones.config.values import convert, of_launcher, of_policy, read_toml

__all__ = [
    "FILE_NAME",
    "PREFIX",
    "SECTIONS",
    "Effective",
    "ServiceSettings",
    "Settings",
    "SimSettings",
    "convert",
    "half_life_seconds",
    "load",
    "of_launcher",
    "of_policy",
    "read_toml",
    "settings_in",
]
