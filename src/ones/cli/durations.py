"""Durations as people type them, `90s`, `2h`, `1d12h`, `30:00`, `1-02:00`, and dates."""

from __future__ import annotations

import re
import time
from datetime import datetime
from math import isfinite

from ones.errors import UserError

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_NAMED = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
#: as in Slurm: MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)((?::\d\d){0,2})")


def seconds_of(text: str, option: str) -> float:
    """The seconds of a duration; a number without a unit is in seconds.

    >>> [seconds_of(text, "") for text in ("90", "90s", "1d12h", "30:00", "2:00:00", "1-02:00")]
    [90.0, 90.0, 129600.0, 1800.0, 7200.0, 93600.0]
    """
    given = text.strip().lower()
    if _NAMED.fullmatch(given):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(given))
    clock = _CLOCK.fullmatch(given)
    if clock is not None and (clock[1] or clock[3]):
        parts = [int(clock[2]), *map(int, clock[3].split(":")[1:])]
        units = (3600, 60, 1) if clock[1] or len(parts) == 3 else (60, 1)
        days = int(clock[1] or 0) * 86_400
        return days + sum(part * unit for part, unit in zip(parts, units, strict=False)) * 1.0
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not (isfinite(seconds) and seconds >= 0):
        raise UserError(f"{option}: {text!r} is not a duration such as 90s, 15m, 2h or 1-02:00")
    return seconds


def seconds_until(text: str, option: str) -> float:
    """The seconds from now until a time: a duration, or a date such as `2026-01-31T18:00`.

    >>> seconds_until("2h", "")
    7200.0
    """
    try:
        left = datetime.fromisoformat(text.strip()).astimezone().timestamp() - time.time()
    except (ValueError, OverflowError):
        try:
            left = seconds_of(text, option)
        except UserError:
            raise UserError(
                f"{option}: {text!r} is neither a duration (90m, 2h, 1-02:00) nor a date"
                " (2026-01-31T18:00)"
            ) from None
    if left <= 0:
        raise UserError(f"{option}: {text!r} is not in the future")
    return left
