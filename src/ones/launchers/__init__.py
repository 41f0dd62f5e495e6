"""Launchers place worker processes on slots, stop and watch them, and read their output.

Launchers do not know what a worker does: orders and reports go directly between the worker and the
controller.
"""

from __future__ import annotations

from ones.exec import Launch
from ones.launchers.api import (
    Exited,
    LaunchedProcess,
    Launcher,
    LauncherContext,
    LauncherEvent,
    Listener,
    Sampled,
    Slot,
    SlotEnding,
    SlotLost,
    SlotSuspect,
    SlotUp,
    SlotUsed,
    Started,
    SupportsKeptReports,
    SupportsPrepare,
    SupportsUnfitNodes,
    SupportsUsers,
)
from ones.launchers.registry import create, names, settings_of

__all__ = [
    "Exited",
    "Launch",
    "LaunchedProcess",
    "Launcher",
    "LauncherContext",
    "LauncherEvent",
    "Listener",
    "Sampled",
    "Slot",
    "SlotEnding",
    "SlotLost",
    "SlotSuspect",
    "SlotUp",
    "SlotUsed",
    "Started",
    "SupportsKeptReports",
    "SupportsPrepare",
    "SupportsUnfitNodes",
    "SupportsUsers",
    "create",
    "names",
    "settings_of",
]
