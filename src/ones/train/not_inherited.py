"""Connections that children of a worker must not have.

A connection ends when the last process that holds it lets go. DataLoader workers are forked and
hold whatever was open then: a worker that gives up a group, or dies, would seem to be there to
the others, and they would wait for it. So every fork first closes its copies of our connections.
gloo does not say which are its own; what was opened while it connected is taken for them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_ours: set[str] = set()  # as the kernel names them, so that a descriptor used again is no mistake
_opening: list[frozenset[str]] = []  # what was there before, of those that connect right now


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """TCP connections that are opened within are not for children."""
    before = frozenset(_connections().values())
    _opening.append(before)
    try:
        yield
    finally:
        here = set(_connections().values())
        _ours.intersection_update(here)  # the others are closed by now
        _ours.update(here - before)
        _opening.remove(before)


def _connections() -> dict[int, str]:
    """TCP sockets of this process, listening ones too: descriptor and name."""
    tcp = _tcp_sockets()
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name in tcp:
                found[descriptor] = name
    return found


def _tcp_sockets() -> set[str]:
    """Of all processes here. Looked up: a Python socket around a descriptor may change it."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/self/net/{table}") as lines:
            next(lines, None)  # the heading
            found.update(f"socket:[{line.split()[9]}]" for line in lines)
    return found


def _in_child() -> None:
    if not _ours and not _opening:
        return
    for descriptor, name in _connections().items():
        if name in _ours or any(name not in before for before in _opening):
            os.close(descriptor)
    _ours.clear()
    _opening.clear()


os.register_at_fork(after_in_child=_in_child)
