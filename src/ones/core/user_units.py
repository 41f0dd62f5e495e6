"""Numbers in the units of users: "8 min", "2.3 GB", "1.4x faster", "4 GPUs"."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from ones.core.cluster import Gpu

#: parts of a list of GPUs that are named; the rest is counted
NAMED_PARTS = 4


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (0.0004, 0.031, 0.84, 8.2, 86, 500, 9000, 200_000, 400_000)]
    ['less than 1 ms', '31 ms', '0.8 s', '8.2 s', '86 s', '8 min', '2.5 h', '56 h', '5 days']
    """
    if seconds < 0.001:
        return "less than 1 ms"
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 9.95 and seconds % 1 else f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 100 * 3600:
        hours = seconds / 3600
        return f"{hours:.1f} h" if hours < 9.95 else f"{hours:.0f} h"
    return f"{seconds / 86_400:.0f} days"


def gpus(number: int) -> str:
    return counted(number, "GPU")


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "job"), counted(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number_of_bytes: float) -> str:
    """
    >>> [size(b) for b in (80, 84_000, 2.34e9)]
    ['80 bytes', '84.0 kB', '2.3 GB']
    """
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number_of_bytes >= limit:
            return f"{number_of_bytes / limit:.1f} {unit}"
    return f"{number_of_bytes:.0f} bytes"


def speed_change(ratio: float) -> str:
    """New speed relative to the old one.

    >>> [speed_change(r) for r in (1.42, 0.5, 1.01)]
    ['1.4x faster', '2.0x slower', 'same speed']
    """
    if ratio >= 1.05:
        return f"{ratio:.1f}x faster"
    return f"{1 / ratio:.1f}x slower" if 0 < ratio <= 0.95 else "same speed"


def gpu_names(places: Iterable[Gpu]) -> str:
    """
    >>> from ones.core.cluster import NodeId
    >>> gpu_names([Gpu(NodeId("n1"), i) for i in (0, 1, 2, 5)] + [Gpu(NodeId("n2"), 3)])
    'n1/0-2, n1/5, n2/3'
    """
    parts: list[tuple[str, int]] = []
    for node, on_node in groupby(sorted(places), key=lambda gpu: gpu.node):
        indexes = [gpu.index for gpu in on_node]
        # consecutive indexes have one difference to their rank
        for _, run in groupby(enumerate(indexes), key=lambda pair: pair[1] - pair[0]):
            members = [index for _, index in run]
            last = f"-{members[-1]}" if len(members) > 1 else ""
            parts.append((f"{node}/{members[0]}{last}", len(members)))
    named = [name for name, _ in parts[:NAMED_PARTS]]
    rest = sum(number for _, number in parts[NAMED_PARTS:])
    return ", ".join(named) + (f" and {rest} more" if rest else "")
