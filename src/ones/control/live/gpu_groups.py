"""Which slots of a node are close to one another: as its launcher says, or as configured."""

from __future__ import annotations

from collections.abc import Sequence

from ones.launchers import Slot


def groups_of(slots: Sequence[Slot], size: int) -> tuple[int, ...]:
    """The number of each slot's group, by index, for one node; empty if all are alike.

    `size`: so many neighbours are a group, whatever the launcher says; 0: as it says.

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
    # one group for all, or one for each, says nothing
    return tuple(numbers[name] for name in names) if 1 < len(numbers) < len(names) else ()
