"""Times, durations and forecasts as text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

NOTE_WIDTH = 200  # a reason with its position and expected start


def duration(seconds: float) -> str:
    """A duration as text.

    >>> duration(75), duration(7325), duration(200_000)
    ('1:15', '2:02:05', '2d 7h')
    """
    whole = round(seconds)
    if whole >= 172_800:
        return f"{whole // 86_400}d {whole % 86_400 // 3600}h"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def eta(job: Mapping[str, Any]) -> str | None:
    """Time until the end of a job, with the 90 % range; None: there is no forecast."""
    if job["ended_at"] is not None or job["eta"] is None:
        return None
    now = time.time()
    middle, low, high = (duration(max(0.0, job[k] - now)) for k in ("eta", "eta_low", "eta_high"))
    return f"{middle} ({low} to {high})"


def moment(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%m-%d %H:%M:%S")


def short(text: str, width: int = NOTE_WIDTH) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def not_used(cluster: Mapping[str, Any]) -> str:
    """The GPUs of a cluster that are out of service, in one line; empty: none."""
    from ones.control.readmodels.out_of_service import out_of_service

    slots = cluster["slots"]
    return out_of_service(len(slots), {s["id"]: s["aside"] for s in slots if s.get("aside")})
