"""Connections that children of a worker must not have, and that nobody may wait for any more.

A connection ends when the last process that holds it lets go. DataLoader workers are forked and
hold whatever was open then: a worker that gives up a group, or dies, would seem to be there to
the others, and they would wait for it. So every fork first closes its copies of our connections.
gloo does not say which are its own; what was opened while it connected is taken for them.

A member whose node is cut off from the others does not even end its connections: whoever waits
for it waits until somebody here severs them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator

_ours: set[str] = set()  # as the kernel names them, so that a descriptor used again is no mistake
_LISTENS = "0A"  # in the kernel's table
_opening: list[frozenset[str]] = []  # what was there before, of those that connect right now


@contextlib.contextmanager
def ours() -> Iterator[set[str]]:
    """TCP connections that are opened within are not for children. Their names, afterwards."""
    before = frozenset(_connections().values())
    _opening.append(before)
    opened: set[str] = set()
    try:
        yield opened
    finally:
        here = set(_connections().values())
        opened.update(here - before)
        _ours.intersection_update(here)  # the others are closed by now
        _ours.update(opened)
        _opening.remove(before)


def sever(names: set[str]) -> None:
    """As if all at the other ends had died: who waits for them is woken with an error."""
    shutdown, states = ctypes.CDLL(None).shutdown, _tcp_sockets()
    for descriptor, name in _connections().items():
        if name not in names or states.get(name, _LISTENS) == _LISTENS:
            continue
        with contextlib.suppress(OSError):
            mine = os.dup(descriptor)  # its owner may close it just now, and its number be taken
            if os.readlink(f"/proc/self/fd/{mine}") == name:
                shutdown(mine, int(socket.SHUT_RDWR))
            os.close(mine)


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


def _tcp_sockets() -> dict[str, str]:
    """Of all processes here, and their states. Looked up: a Python socket around a descriptor may
    change it."""
    found: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/self/net/{table}") as lines:
            next(lines, None)  # the heading
            for words in map(str.split, lines):
                found[f"socket:[{words[9]}]"] = words[3]
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
