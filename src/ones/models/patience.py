"""How long to leave alone what has failed."""

from __future__ import annotations


def doubling(first: float, longest: float, times: int) -> float:
    """Seconds to wait after so many failures in a row, the first one included.

    >>> [doubling(60.0, 200.0, times) for times in (1, 2, 3, 4000)]
    [60.0, 120.0, 200.0, 200.0]
    """
    return float(min(longest, first * 2.0 ** min(times - 1, 30)))
