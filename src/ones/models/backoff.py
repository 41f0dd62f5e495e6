"""Waiting time after repeated failures."""

from __future__ import annotations


def backoff_seconds(first: float, longest: float, failures: int) -> float:
    """Seconds to wait after consecutive failures: doubled each time, up to `longest`.

    >>> [backoff_seconds(60.0, 200.0, failures) for failures in (1, 2, 3, 4000)]
    [60.0, 120.0, 200.0, 200.0]
    """
    return float(min(longest, first * 2.0 ** min(failures - 1, 30)))
