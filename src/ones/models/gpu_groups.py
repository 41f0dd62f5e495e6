"""Selection of GPUs within a node: close to each other, without splitting groups needlessly.

The rule is that for nodes: the group with the fewest free GPUs that suffice, or else the most. In a
node without groups the first GPUs are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ones.core.cluster import Gpu


def pick_gpus(
    free: Iterable[Gpu], n_gpus: int, groups: Sequence[int], beside: Iterable[Gpu] = ()
) -> list[Gpu]:
    """Picks `n_gpus` of the free GPUs of a node, from as few groups as possible.

    `groups`: as in `Node`. `beside`: GPUs of the job on that node; their groups come first.

    >>> pair = (0, 0, 1, 1)
    >>> [gpu.index for gpu in pick_gpus([Gpu("n0", i) for i in (1, 2, 3)], 2, pair)]
    [2, 3]
    >>> [gpu.index for gpu in pick_gpus([Gpu("n0", i) for i in (1, 2, 3)], 1, pair)]
    [1]
    >>> [gpu.index for gpu in pick_gpus([Gpu("n0", i) for i in (1, 3)], 1, pair, [Gpu("n0", 2)])]
    [3]
    """
    if not groups:
        return sorted(free)[:n_gpus]
    by_group: dict[int, list[Gpu]] = {}
    for gpu in sorted(free):
        by_group.setdefault(groups[gpu.index], []).append(gpu)
    chosen: list[Gpu] = []
    near = {groups[gpu.index] for gpu in beside} & by_group.keys()
    while len(chosen) < n_gpus and by_group:
        missing = n_gpus - len(chosen)
        group = min(
            near or by_group,
            key=lambda g: (len(by_group[g]) < missing, abs(len(by_group[g]) - missing), g),
        )
        chosen += by_group.pop(group)[:missing]
        near.discard(group)
    return chosen


def count_groups(gpus: Iterable[Gpu], groups: Sequence[int]) -> int:
    """The number of groups of a node that these GPUs belong to."""
    return len({groups[gpu.index] for gpu in gpus}) if groups else 1
