"""Which GPUs of one node: those that are close to one another, so that no group is broken in vain.

The same rule as for nodes: the group with the least sufficient room, or else the most there is.
Where all GPUs are alike it is the first ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ones.core.cluster import Gpu


def pick(
    free: Iterable[Gpu], n_gpus: int, groups: Sequence[int], beside: Iterable[Gpu] = ()
) -> list[Gpu]:
    """So many of these GPUs of a node, from as few groups as can be.

    `groups` as of the `Node`. With `beside`, GPUs that the job has there: first from their groups.

    >>> pair = (0, 0, 1, 1)
    >>> [gpu.index for gpu in pick([Gpu("n0", i) for i in (1, 2, 3)], 2, pair)]
    [2, 3]
    >>> [gpu.index for gpu in pick([Gpu("n0", i) for i in (1, 2, 3)], 1, pair)]
    [1]
    >>> [gpu.index for gpu in pick([Gpu("n0", i) for i in (1, 3)], 1, pair, [Gpu("n0", 2)])]
    [3]
    """
    if not groups:
        return sorted(free)[:n_gpus]
    rooms: dict[int, list[Gpu]] = {}
    for gpu in sorted(free):
        rooms.setdefault(groups[gpu.index], []).append(gpu)
    chosen: list[Gpu] = []
    near = {groups[gpu.index] for gpu in beside} & rooms.keys()
    while len(chosen) < n_gpus and rooms:
        missing = n_gpus - len(chosen)
        group = min(
            near or rooms,
            key=lambda g: (len(rooms[g]) < missing, abs(len(rooms[g]) - missing), g),
        )
        chosen += rooms.pop(group)[:missing]
        near.discard(group)
    return chosen


def parts(gpus: Iterable[Gpu], groups: Sequence[int]) -> int:
    """How many groups of a node these GPUs of it are in."""
    return len({groups[gpu.index] for gpu in gpus}) if groups else 1
