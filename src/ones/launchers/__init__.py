"""Put a process on a slot, stop it, watch it, read its output. Nothing else: what a training
process does and when is between it and the controller."""

from __future__ import annotations

from ones.launchers.api import (
    Exited,
    Judging,
    KeepingReports,
    Launch,
    Launcher,
    LauncherEvent,
    Preparing,
    Process,
    Slot,
    SlotEnding,
    SlotLost,
    SlotSuspect,
    SlotUp,
    SlotUsed,
    Started,
)

__all__ = [
    "Exited",
    "Judging",
    "KeepingReports",
    "Launch",
    "Launcher",
    "LauncherEvent",
    "Preparing",
    "Process",
    "Slot",
    "SlotEnding",
    "SlotLost",
    "SlotSuspect",
    "SlotUp",
    "SlotUsed",
    "Started",
]
