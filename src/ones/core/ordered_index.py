"""A sorted set that stays cheap at 100,000 members.

Keys are in blocks of a few hundred, found by bisection. Adding and removing shift one block;
iterating costs only the keys that are read. The standard library has a heap (cannot be iterated in
order) and `insort` (shifts the whole list).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

_BLOCK = 512

Key = tuple[float, int]


class OrderedIndex:
    """Distinct keys (rank, number), in order."""

    __slots__ = ("_blocks", "_firsts", "_length")

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []
        self._firsts: list[Key] = []
        self._length = 0

    def add(self, key: Key) -> None:
        if not self._blocks:
            self._blocks, self._firsts = [[key]], [key]
        else:
            at = self._block_of(key)
            block = self._blocks[at]
            insort(block, key)
            self._firsts[at] = block[0]
            if len(block) > 2 * _BLOCK:
                self._blocks[at : at + 1] = [block[:_BLOCK], block[_BLOCK:]]
                self._firsts[at : at + 1] = [block[0], block[_BLOCK]]
        self._length += 1

    def remove(self, key: Key) -> None:
        """Remove a key. Raises KeyError if it is not in the set."""
        if not self._blocks:
            raise KeyError(key)
        at = self._block_of(key)
        block = self._blocks[at]
        offset = bisect_left(block, key)
        if offset == len(block) or block[offset] != key:
            raise KeyError(key)
        del block[offset]
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]
        self._length -= 1

    def _block_of(self, key: Key) -> int:
        at = bisect_left(self._firsts, key)
        if at < len(self._firsts) and self._firsts[at] == key:
            return at
        return max(at - 1, 0)

    def __iter__(self) -> Iterator[Key]:
        for block in self._blocks:
            yield from block

    def __len__(self) -> int:
        return self._length
