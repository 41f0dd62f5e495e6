"""Groups of slots of a node that are close to one another: from the launcher, or configured."""

from __future__ import annotations

from collections.abc import Sequence

from ones.launchers import Slot


def groups_of(slots: Sequence[Slot], size: int) -> tuple[int, ...]:
    """The group number of each slot of one node, by index; empty if the groups tell nothing.

    `size`: number of neighbouring slots in a group; 0: the groups that the launcher reports.

    >>> groups_of([Slot(node="n0", index=i) for i in range(4)], 2)
    (0, 0, 1, 1)
    >>> groups_of([Slot(node="n0", index=i, group="ab"[i % 2]) for i in range(4)], 0)
    (0, 1, 0, 1)
    >>> groups_of([Slot(node="n0", index=i) for i in range(4)], 0)
    ()
    """
    ordered = sorted(slots, key=lambda slot: slot.index)
    names = [str(i // size) if size else slot.group for i, slot in enumerate(ordered)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    # one group for all slots, or one group for each slot, tells nothing
    return tuple(numbers[name] for name in names) if 1 < len(numbers) < len(names) else ()
